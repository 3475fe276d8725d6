# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Upgrades of Slurm that are refused or have nothing to do; tests/proof/slurm_upgrade.py upgrades for real."""

from __future__ import annotations

import json
import re

import pytest

pytestmark = pytest.mark.engine


# Muster compares a list of sources before it fetches any, so the test may name a version that does not exist yet.
SOURCES = [{"version": "27.11.1", "url": "http://127.0.0.1/none.tar.bz2", "sha256": "0" * 64}]


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        (
            {"slurm_version": "27.05"},
            r"Slurm 27\.05 is offered by no source of controller-1, which has [\d.]+; set slurm_version to what there is",
        ),
        (
            {"slurm_install_method": "source", "slurm_sources": SOURCES},
            r"Slurm 24\.11\.\d+ on compute-1 cannot become 27\.11\.1 in one step, because 27\.11 understands only 27\.05, 26\.11 and "
            r"26\.05; go by way of 26\.05\.",
        ),
    ],
)
def test_an_invalid_upgrade_is_refused(fleet, variables: dict, sentence: str) -> None:
    look = ("sh", "-c", "dpkg-query -W | sha256sum; ls /var/backups/slurm /opt/slurm 2>&1; pgrep -a slurm")
    before = fleet.ansible("controller-1", *look)
    done = fleet.run("playbooks/slurm_upgrade.yml", "-e", json.dumps(variables))
    assert done.returncode != 0
    [said] = re.findall(r"^FAILED (.*)$", done.stdout, re.MULTILINE)
    assert re.search(sentence, said), said
    assert fleet.ansible("controller-1", *look) == before


def test_a_fleet_with_the_newest_version_has_nothing_to_do(fleet) -> None:
    done = fleet.run("playbooks/slurm_upgrade.yml")
    assert done.returncode == 0, done.stdout[-3000:]
    assert re.search(r"Slurm is [\d.]+ everywhere, nothing is to be done\.", done.stdout)
    assert set(re.findall(r"changed=(\d+)", done.stdout)) == {"0"}
