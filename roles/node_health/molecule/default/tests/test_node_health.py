# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What role node_health leaves on a node, and what muster-health says there."""

from __future__ import annotations

import json

GOOD = "muster-health --level periodic --format json"


def checks(host, command: str = GOOD) -> dict[str, dict]:
    return {each["check"]: each for each in json.loads(host.run(command).stdout)["checks"]}


def test_the_program_needs_python_alone(host) -> None:
    assert host.run("env -i /usr/bin/muster-health --list").succeeded
    found = checks(host)
    assert {name for name, each in found.items() if each["status"] == "failed"} == set()
    assert {"disk_space", "drift", "memory_available"} <= {name for name, each in found.items() if each["status"] == "passed"}
    # No mount is asked for; some container engines give the node a root file system by FUSE.
    mounts = found["mounts"]
    assert mounts["status"] == "passed" or mounts["reason"] == "the node has no network file system, and its settings name no mount"
    assert found["clock"]["reason"] == "in a container it belongs to the host"


def test_devices_stay_devices(host) -> None:
    host.check_output("muster-health --level periodic --output /dev/null")
    assert host.check_output("stat -c %F /dev/null") == "character special file"


def test_it_starts_in_less_than_0_3_seconds_of_processor_time(host) -> None:
    code = "import os,subprocess;subprocess.run(['muster-health','--list'],stdout=-3);t=os.times();print(t.children_user+t.children_system)"
    assert min(float(host.check_output(f'python3 -c "{code}"')) for _time in range(3)) < 0.3


def test_drift_is_found_and_ends(host) -> None:
    host.check_output("mv /usr/bin/muster-health /usr/bin/moved")
    try:
        drift = checks(host, GOOD.replace("muster-health", "moved"))["drift"]
    finally:
        host.check_output("mv /usr/bin/moved /usr/bin/muster-health")
    assert (drift["status"], drift["reason"]) == ("failed", "node_health: /usr/bin/muster-health is missing")
    assert checks(host)["drift"]["status"] == "passed"


def test_a_mount_that_hangs_is_found_without_hanging(host) -> None:
    """A frozen process that serves a file system: the kernel never answers whoever asks."""
    host.check_output("mkdir -p /mnt/it && printf '#!/bin/sh\\nexec sleep 30\\n' >/usr/local/bin/stat && chmod 755 /usr/local/bin/stat")
    host.check_output("mount -t tmpfs it /mnt/it")
    settings = json.loads(host.file("/etc/muster/health.json").content_string)
    host.check_output("echo '%s' >/tmp/health.json" % json.dumps({**settings, "mounts": ["/mnt/it"]}))
    try:
        mounts = checks(host, GOOD + " --settings /tmp/health.json --check mounts")["mounts"]
    finally:
        host.check_output("umount /mnt/it; rm /usr/local/bin/stat")
    assert mounts["reason"] == "/mnt/it does not answer within 2 s"
    assert mounts["seconds"] < 6
