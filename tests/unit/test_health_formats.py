# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The outputs of muster-health: for Nagios, for Prometheus, and its exit codes."""

from __future__ import annotations

import pytest
from health_records import record

from ansible_collections.muster.fleet.plugins.module_utils.health import formats


@pytest.mark.parametrize(
    ("records", "level", "code"),
    [
        ([record("gpu_count", "passed")], "periodic", 0),
        ([record("gpu_count")], "periodic", 2),
        ([record("swap")], "periodic", 1),
        ([record("swap")], "prolog", 0),
        ([record("swap", severity="info")], "periodic", 0),
        ([record("gpu_count", "not_run")], "periodic", 3),
        ([record("gpu_count", "not_run")], "prolog", 3),
        ([record("gpu_count", "not_run", allowed=True)], "periodic", 0),
        ([record("gpu_count", "not_run", rehearsed="passed")], "periodic", 3),
        ([record("gpu_count", "not_run", rehearsed="passed")], "prolog", 0),
        ([record("gpu_count", "not_run", rehearsed="failed")], "prolog", 2),
        ([record("gpu_count", "not_run", stand_in=True)], "prolog", 0),
        ([], "periodic", 3),
        ([], "prolog", 0),
    ],
)
def test_exit_codes_are_those_of_nagios(records: list, level: str, code: int) -> None:
    """For Slurm's prolog, a code other than 0 drains the node."""
    assert formats.code(records, level) == code


def test_the_line_for_nagios() -> None:
    text = formats.nagios([record("gpu_count"), record("swap", "passed")], "periodic", ["a note"])
    first, second, third = text.splitlines()
    assert first == "MUSTER CRITICAL - gpu_count: the driver lists 7 of 8 GPUs | passed=1 failed=1 not_run=0 seconds=0.200s"
    assert second.startswith("[reboot] gpu_count: the driver lists 7 of 8 GPUs. Reset the GPU")
    assert third == "a note"
    assert formats.nagios([], "full").startswith("MUSTER UNKNOWN - no check of level full applies to this node")


def test_the_textfile_for_prometheus() -> None:
    alarm = {"check": "drift", "image": 'ami-"1"', "nodes": 4}
    text = formats.prometheus([record("gpu_count"), record("clock", "not_run"), record("swap", "passed")], "periodic", 1764064000.5, alarm)
    assert 'muster_health_check{check="gpu_count",severity="reboot"} 0\n' in text
    assert 'muster_health_check{check="clock",severity="drain"} -1\n' in text
    assert 'muster_health_check{check="swap",severity="warning"} 1\n' in text
    assert 'muster_health_image_alarm{check="drift",image="ami-\\"1\\""} 4\n' in text
    assert 'muster_health_run_timestamp_seconds{level="periodic"} 1764064000.500\n' in text
    for name in {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")}:
        assert f"# TYPE {name} gauge\n" in text
