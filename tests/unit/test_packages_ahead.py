# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Packages of later roles: which they are for a host, that a node begins with them in the background, and what it does not begin."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from ansible_collections.muster.fleet.plugins.module_utils import packages, service_guard
from ansible_collections.muster.fleet.plugins.modules import packages_ahead as module

ROOT = Path(__file__).parents[2]
STEPS = [{"component": "common", "names": ["jq"]}, {"component": "slurm", "names": ["munge", "slurmd"]}]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node without packages; its log has the names of each apt-get install, and one waits until the file `go` is there."""
    monkeypatch.setattr(service_guard, "PATH", str(tmp_path / "policy-rc.d"))
    monkeypatch.setattr(service_guard, "INSTALLING", str(tmp_path / "installing"))
    monkeypatch.setattr(service_guard, "AHEAD", str(tmp_path / "ahead.lock"))
    monkeypatch.setattr(packages, "LISTS", str(tmp_path))
    monkeypatch.setattr(module.shutil, "which", lambda name: f"/usr/bin/{name}")
    isdir = os.path.isdir
    monkeypatch.setattr(os.path, "isdir", lambda folder: folder == "/etc/dpkg" or isdir(folder))

    def run_command(_module, argv, **_options):
        if argv[0] == "dpkg-query":
            return (1, "", "dpkg-query: no packages found") if argv[4:] else (0, "libc6 2.41-12 ii \n", "")
        deadline = time.monotonic() + 30
        while not (tmp_path / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        with (tmp_path / "log").open("a") as log:
            print(*argv[argv.index("install") + 1 :] if "install" in argv else ["update"], file=log)
        return (100, "", "E: Unable to locate package jq\n") if argv[-1] == "jq" else (0, "", "")

    monkeypatch.setattr(module.AnsibleModule, "run_command", run_command)
    return tmp_path


def begin(call, node: Path, **options: object) -> list[str]:
    result = call(module, **{"steps": STEPS, "manifest": str(node / "manifest.json"), **options})
    assert result["changed"] == bool(result["begun"])
    # Nobody compares what is new, so that it must be so.
    assert set(result["new"]) == (
        {each["component"] for each in STEPS if set(each["names"]) & set(result["begun"])} if not options.get("check_mode") else set()
    )
    return result["begun"]


def test_goes_on_in_the_background_with_services_refused(call, node):
    assert begin(call, node) == ["jq", "munge", "slurmd"]
    assert service_guard.ahead_runs() and Path(service_guard.PATH).exists() and not (node / "log").exists()
    assert begin(call, node) == ["jq", "munge", "slurmd"], "a second time only says what is begun"
    (node / "go").touch()
    deadline = time.monotonic() + 30
    while service_guard.ahead_runs() and time.monotonic() < deadline:
        time.sleep(0.02)
    lines = (node / "log").read_text().splitlines()
    # Nobody knows jq; the next step is tried all the same.
    assert [line for line in lines if line != "update"] == ["jq", "munge slurmd"]
    assert service_guard.ahead_done() == {"jq", "munge", "slurmd", "libc6"}, "with what came along"
    assert not Path(service_guard.PATH).exists()


def test_what_the_manifest_has_is_not_begun(call, node):
    (node / "manifest.json").write_text(json.dumps({"schema": "muster.manifest/1", "components": {"common": {}}}))
    assert begin(call, node, check_mode=True) == ["munge", "slurmd"]
    (node / "manifest.json").write_text("{")
    assert begin(call, node, check_mode=True) == [], "a damaged manifest is told by the role that compares it"


def test_nothing_is_begun_without_room_or_apt(call, node, monkeypatch):
    assert begin(call, node, check_mode=True, space={"cuda": 1}) == ["jq", "munge", "slurmd"]
    assert begin(call, node, space={"cuda": 1 << 40}) == []
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    assert begin(call, node) == []
    assert not Path(service_guard.PATH).exists()


def test_check_mode_begins_nothing(call, node):
    assert begin(call, node, check_mode=True) == ["jq", "munge", "slurmd"]
    assert not service_guard.ahead_runs() and not Path(service_guard.PATH).exists()


def asked(tmp_path: Path, roles: tuple[str, ...] = ("common", "storage", "slurm"), **variables: object) -> list[str]:
    """What the action would begin on a compute node of Debian 13."""
    tools = tmp_path / "bin"
    tools.mkdir(exist_ok=True)
    for name, code in (("apt-get", 1), ("dpkg-query", 1)):
        (tools / name).write_text(f"#!/bin/sh\nexit {code}\n")
        (tools / name).chmod(0o755)
    facts = {"distribution": "Debian", "os_family": "Debian", "distribution_major_version": "13", "architecture": "x86_64"}
    tasks = [
        {"ansible.builtin.set_fact": {**facts, "cacheable": True}},
        {"muster.fleet.packages_ahead": {"roles": list(roles), "manifest": "/nowhere"}, "register": "ahead"},
        {"ansible.builtin.debug": {"msg": "BEGUN {{ ahead.begun | join(' ') }} END"}},
    ]
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    (tmp_path / "play.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "vars": local | variables, "tasks": tasks}]))
    (tmp_path / "hosts").write_text("[muster_controller]\nhead\n[muster_compute]\nnode\n")
    command = [
        Path(sys.executable).parent / "ansible-playbook",
        "--check",
        "-i",
        tmp_path / "hosts",
        "--limit",
        "node",
        tmp_path / "play.yml",
    ]
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split("BEGUN ")[1].split(" END")[0].split()


def test_roles_say_what_they_need_on_this_host(tmp_path):
    begun = asked(tmp_path)
    assert {"jq", "munge", "slurmd", "libpmix2t64", "chrony"} <= set(begun)
    assert not {"slurmctld", "mariadb-server"} & set(begun), "a compute node is no controller"
    assert begun.index("jq") < begun.index("munge"), "role after role"


def test_a_slurm_of_another_source_is_not_begun(tmp_path):
    begun = asked(tmp_path, slurm_apt_source={"suite": "forky"}, common_packages=["jq"])
    assert begun == ["jq", "chrony"]


def test_of_a_stack_only_what_the_distribution_has_is_begun(tmp_path):
    roles = ("cuda", "gdrcopy", "nccl", "docker")
    assert asked(tmp_path, roles) == ["nvidia-cuda-toolkit", "libnccl2", "libnccl-dev", "docker.io", "docker-cli"]
    # From NVIDIA's repository, whose key and address their roles bring first; and Debian 13 has no source at all.
    assert asked(tmp_path, roles, muster_stack_name="aws-2026.11") == []


def test_nothing_is_begun_beside_drivers_or_before(tmp_path):
    """Kernel and drivers hold packages by dpkg itself, and CUDA's packages would bring another version of the driver's libraries."""
    names = [task["name"] for task in yaml.safe_load((ROOT / "playbooks/tasks/stack_hardware.yml").read_text())]
    begin = names.index("stack_hardware | Begin to install the rest")
    drivers = yaml.safe_load((ROOT / "playbooks/vars/components.yml").read_text())["__stack_drivers"]
    before = [name.rpartition(" ")[2] for name in names[:begin] if "Run" in name]
    assert before == drivers, "one that is neither before nor a driver is begun in its turn"


def test_a_play_begins_only_where_nothing_of_it_would_meet_what_is_installed(tmp_path):
    cases = [
        (["install", "configure"], {}, True),
        (["configure"], {}, False),
        (["install", "verify_image"], {}, False),
        (["install"], {"common": {"install": {"before": ["a.yml"]}}}, False),
    ]
    play = {
        "hosts": "localhost",
        "gather_facts": False,
        "vars_files": [str(ROOT / "playbooks/vars/components.yml")],
        "tasks": [
            {
                "ansible.builtin.debug": {"msg": "CASE {{ __stack_may_begin }}"},
                "loop": [{"phases": phases, "hooks": hooks} for phases, hooks, _ in cases],
                "vars": {"muster_phases": "{{ item.phases }}", "muster_hooks": "{{ item.hooks }}"},
            }
        ],
    }
    (tmp_path / "play.yml").write_text(json.dumps([play]))
    command = [Path(sys.executable).parent / "ansible-playbook", "-i", "localhost,", tmp_path / "play.yml"]
    said = [subprocess.run([*command, *more], cwd=ROOT, capture_output=True, text=True, check=True).stdout for more in ((), ("--check",))]
    assert re.findall(r"CASE (\w+)", said[0]) == [str(begins) for _, _, begins in cases]
    assert re.findall(r"CASE (\w+)", said[1]) == ["False"] * len(cases), "a dry run"


def test_efa_s_installer_waits_for_the_packages():
    tasks = yaml.safe_load((ROOT / "roles/efa/tasks/install.yml").read_text())
    [argv] = [task["ansible.builtin.command"]["argv"] for task in tasks if "installer, a few" in task["name"]]
    assert f"'flock', '--shared', '{service_guard.AHEAD}'" in argv
