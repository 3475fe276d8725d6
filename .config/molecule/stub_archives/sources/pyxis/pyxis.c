#include <stddef.h>
#include <slurm/spank.h>
/* The help of srun shows it. In a rehearsal it names the stand-in. */
#define SAYS ""
SPANK_PLUGIN(pyxis, 1)
static int wanted(int val, const char *optarg, int remote)
{
    slurm_error("stub archive: keeps names, options and exit codes of pyxis; not the vendor's");
    return -1;
}
struct spank_option spank_options[] = {
    {"container-image", "IMAGE", "[pyxis] the image to use for the container filesystem" SAYS, 1, 0, wanted},
    {"container-mounts", "SRC:DST", "[pyxis] bind mounts inside the container", 1, 0, wanted},
    SPANK_OPTIONS_TABLE_END
};
/* Slurm refuses a plugin without a single callback. */
int slurm_spank_init(spank_t spank, int argc, char **argv)
{
    return 0;
}
