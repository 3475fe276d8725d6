#include <stdio.h>
#include <string.h>
/* NCCL has the names of the plugins that it looks for as texts. */
const char *interfaces[] = {"ncclNetPlugin_v6", "ncclNetPlugin_v8", "ncclNetPlugin_v10"};
int ncclGetVersion(int *version)
{
    *version = 23007;
    return 0;
}
/* It reads its file and says what it took from there, as NCCL_DEBUG=INFO does. */
int ncclGetUniqueId(void *id)
{
    char line[1024];
    FILE *file = fopen("/etc/nccl.conf", "r");
    while (file && fgets(line, sizeof line, file)) {
        char *value = strchr(line, '=');
        if (*line == '#' || !value)
            continue;
        *value++ = 0;
        printf("NCCL INFO %s set by environment to %s", line, value);
    }
    if (file)
        fclose(file);
    fflush(stdout);
    return 0;
}
