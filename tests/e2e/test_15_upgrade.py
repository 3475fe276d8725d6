# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The upgrade of Slurm where there is nothing to upgrade to; tests/proof/slurm_upgrade.py makes one."""

from __future__ import annotations

import re

import pytest

pytestmark = pytest.mark.engine


def test_a_version_that_nobody_offers_is_refused(fleet) -> None:
    look = ("sh", "-c", "dpkg-query -W | sha256sum; ls /var/backups/slurm 2>&1; pgrep -a slurm")
    before = fleet.ansible("controller-1", *look)
    done = fleet.run("playbooks/slurm_upgrade.yml", "-e", "slurm_version=27.05")
    assert done.returncode != 0
    [said] = re.findall(r"^FAILED (.*)$", done.stdout, re.MULTILINE)
    assert re.search(r"Slurm 27\.05 is offered by no source of controller-1, which has [\d.]+; set slurm_version to what there is", said)
    assert fleet.ansible("controller-1", *look) == before


def test_a_fleet_with_the_newest_version_has_nothing_to_do(fleet) -> None:
    done = fleet.run("playbooks/slurm_upgrade.yml")
    assert done.returncode == 0, done.stdout[-3000:]
    assert re.search(r"Slurm is [\d.]+ everywhere, nothing is to be done\.", done.stdout)
    assert set(re.findall(r"changed=(\d+)", done.stdout)) == {"0"}
