# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What a list of tarballs becomes, what is refused before anything is fetched, and when the active version may change."""

from __future__ import annotations

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.slurm import source as logic

SHA256 = "e1a5547edd212c38b5e3230a284133f777b32746551f094aaa81cc4af375e332"


def source(version: str = "24.11.5", **more) -> dict:
    return {"version": version, "url": f"https://example.org/pool/slurm-{version}.tar.bz2", "sha256": SHA256, **more}


def builds(*sources: dict, wanted: str = "", mirror: str = ""):
    return logic.builds(list(sources), wanted, mirror)


def test_a_build():
    [build], active = builds(source(sha256=SHA256.upper(), configure=["--without-jwt"], packages=["libfoo-dev"]))
    assert active == "24.11.5"
    assert build == {
        "version": "24.11.5",
        "url": "https://example.org/pool/slurm-24.11.5.tar.bz2",
        "sha256": SHA256,
        "configure": ["--without-jwt"],
        "packages": ["libfoo-dev"],
    }


@pytest.mark.parametrize(
    ("mirror", "url"),
    [
        ("", "https://example.org/pool/slurm-24.11.5.tar.bz2"),
        ("http://mirror/slurm/", "http://mirror/slurm/slurm-24.11.5.tar.bz2"),
        ("/srv/files", "file:///srv/files/slurm-24.11.5.tar.bz2"),
    ],
)
def test_mirror(mirror, url):
    [build], _active = builds(source(), mirror=mirror)
    assert build["url"] == url


@pytest.mark.parametrize(
    ("sources", "wanted", "sentence"),
    [
        ([], "", "slurm_install_method is source and slurm_sources is empty; give it a version, url and sha256."),
        ([source("24.11")], "", "slurm_sources has the version 24.11; write it as 24.11.5, or 24.11.5-nvml for another build of it."),
        ([source("../x")], "", "slurm_sources has the version ../x; write it as 24.11.5, or 24.11.5-nvml for another build of it."),
        ([source(), source()], "", "slurm_sources has version 24.11.5 2 times; leave one."),
        ([source("22.05.8")], "", "Slurm 22.05.8 has no sackd and is not built by this role; take 23.11 or later."),
        ([source(sha256="abc")], "", "The sha256 of version 24.11.5 in slurm_sources is not 64 hexadecimal digits."),
        ([source()], "25.05.1", "slurm_version 25.05.1 is not in slurm_sources, which has 24.11.5."),
        (
            [source(), source("25.05.1")],
            "",
            "slurm_version must say which of slurm_sources is active: 24.11.5, 25.05.1.",
        ),
    ],
)
def test_refused(sources, wanted, sentence):
    with pytest.raises(logic.SourceError) as refused:
        builds(*sources, wanted=wanted)
    assert str(refused.value) == sentence


@pytest.mark.parametrize(
    ("now", "wanted", "running", "fault"),
    [
        ("", "24.11.5", [], ""),
        ("24.11.5", "24.11.5", ["slurmd"], ""),
        ("24.11.5", "25.05.1", [], ""),
        (
            "24.11.5",
            "25.05.1",
            ["slurmctld", "slurmd"],
            "Slurm 24.11.5 is active and slurmctld runs with it; ",
        ),
        (
            "",
            "24.11.5",
            ["slurmd"],
            "Slurm of the packages is active and slurmd runs with it; ",
        ),
    ],
)
def test_the_active_version_changes_only_where_nothing_runs(now, wanted, running, fault):
    remedy = f"playbooks/slurm_upgrade.yml takes a running cluster from there to {wanted}."
    assert logic.switch_fault(now, wanted, running) == (fault + remedy if fault else "")
