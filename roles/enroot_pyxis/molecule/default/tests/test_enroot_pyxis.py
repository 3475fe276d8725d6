# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What role enroot_pyxis sets up on a node that is controller and compute node: Slurm loads a plugin that was built for it."""

from __future__ import annotations

import json

PLUGIN = "/usr/lib/muster/pyxis/lib/slurm/spank_pyxis.so"
RUN = "runuser -u muster -- srun --immediate=60 --quiet --time=2 --mem=64"


def test_slurm_has_the_options_of_pyxis_and_jobs_run_without_them(host):
    assert "--container-image=" in host.check_output("srun --help")
    assert host.check_output(f"{RUN} echo ran") == "ran"


def test_a_job_that_asks_for_a_container_never_runs_outside_of_one(host):
    # srun then ends with 255, which Ansible would take for an error of the connection.
    done = host.run(f"{RUN} --container-image=debian:13 echo ran || echo refused")
    assert done.stdout == "refused\n"
    assert "stub archive" in done.stderr


def test_it_is_built_for_the_slurm_of_the_node(host):
    built = host.file("/usr/lib/muster/pyxis/built-for").content_string.strip()
    assert built and built == host.check_output("srun --version").split()[-1]
    assert host.file("/etc/slurm/plugstack.conf").content_string.splitlines()[-1] == f"required {PLUGIN}"


def test_enroot_is_built_with_its_parts_and_known_to_the_node(host):
    """The stub's make fails without the parts. A link that an earlier version left leads nowhere."""
    prefix = "/usr/lib/muster/enroot"
    assert host.check_output("enroot version") == "4.1.2"
    assert host.check_output("enroot settings") == host.file("/etc/enroot/enroot.conf").content_string.strip()
    for name in ("/usr/bin/enroot-nsenter", "/etc/enroot/hooks.d/10-hook.sh"):
        assert host.file(name).linked_to.startswith(prefix)
    assert "cap_sys_admin" in host.check_output(f"getcap {prefix}/bin/enroot-mksquashovlfs")


def test_images_lie_on_a_disk_of_the_node(host):
    config = host.file("/etc/enroot/enroot.conf.d/90-muster.conf").content_string
    assert "ENROOT_CACHE_PATH /var/lib/enroot/cache/user-$(id -u)" in config
    for folder in ("/run/enroot", "/var/lib/enroot/cache", "/var/lib/enroot/data"):
        assert host.file(folder).mode == 0o1777


def test_manifest_has_versions_of_both_and_of_slurm(host):
    entry = json.loads(host.file("/etc/muster/manifest.json").content_string)["components"]["enroot_pyxis"]
    assert (entry["version"], entry["verified"]) == ("0.24.0", "sha256")
    assert entry["packages"]["slurm-client"] == host.package("slurm-client").version
