# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What roles of GPU nodes refuse, and in which words: the roles themselves, in a dry run on this machine with the facts of another."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jinja2
import pytest
import yaml
from playbook import run_playbook

from ansible_collections.muster.fleet.plugins.plugin_utils import stack_files

ROOT = Path(__file__).parents[2]
DEBIAN = {"distribution": "Debian", "distribution_major_version": "13", "distribution_version": "13.2", "os_family": "Debian"}
FEDORA = {"distribution": "Fedora", "distribution_major_version": "42", "distribution_version": "42", "os_family": "RedHat"}
UBUNTU = {"distribution": "Ubuntu", "distribution_major_version": "24", "distribution_version": "24.04", "os_family": "Debian"}
MACHINE = {"architecture": "x86_64", "virtualization_type": "kvm"}


def headers_task() -> dict:
    """The task of role nvidia_driver that judges the answer of kernel_facts."""
    tasks = yaml.safe_load((ROOT / "roles/nvidia_driver/tasks/install.yml").read_text())
    [task] = [task for task in tasks if "headers" in task["name"]]
    return task


# name: (facts, role or role:tasks, its variables, its message)
CASES = {
    "unknown OS": (FEDORA, "efa", {}, "Stack aws-2026.11 has no efa for fedora42 on x86_64; give efa a source for it."),
    "refused on this OS": (DEBIAN, "neuron", {"muster_stack_name": "aws-2026.11"}, "neuron 2.32.0 is refused on debian13: "),
    "not signed": (
        UBUNTU,
        "lustre_client",
        {"muster_require_signed": True},
        "muster_require_signed is true, and only HTTPS vouches for the key https://fsx-lustre-client-repo-public-keys.s3.amazonaws.com/",
    ),
    "unknown type": (UBUNTU, "nvidia_fabric", {"instance_type": "p5.48xlrage"}, "p5.48xlarge"),
    "driver and fabric manager differ": (
        UBUNTU,
        "nvidia_fabric",
        {"instance_type": "p5.48xlarge", "nvidia_driver_version": "595.91.07"},
        "fabricmanager 595.112.07 and driver 595.91.07 differ and do not work together; give both the same version in the stack.",
    ),
    "stack with an unknown key": (
        DEBIAN,
        "docker",
        {"muster_stack_name": "FOLDER/site.yml"},
        "Stack site: component docker has the unknown key verison; the nearest is version.",
    ),
    "no space for the components of the host together": (
        DEBIAN,
        "cuda",
        {"phases_host_components": ["cuda", "nccl"], "phases_space": {"cuda": 10**9, "nccl": 2, "efa": 1500}},
        "cuda, nccl together need 1000000002 MiB on / and ",
    ),
    "headers that the archives do not have": (
        DEBIAN,
        "kernel:headers",
        {"__kernel": {"target": "6.12.1-none", "header_packages": ["linux-headers-6.12.1-none"]}},
        "The headers of kernel 6.12.1-none (linux-headers-6.12.1-none) could not be installed, so that no driver can be built for it; "
        "name a kernel whose headers the package archives have in kernel_packages, and run it.",
    ),
    "kernel without headers": (
        DEBIAN,
        "",
        {"__nvidia_driver_kernel": {"headers": False, "target": "6.12.1-amd64", "header_packages": ["linux-headers-6.12.1-amd64"]}},
        "Kernel 6.12.1-amd64, which this node will run, has no headers to build the driver with; run role kernel first, "
        "or install linux-headers-6.12.1-amd64.",
    ),
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """{case: message} from one play with a host for each case. The play goes on after each refusal."""
    folder = tmp_path_factory.mktemp("refusals")
    site = {"schema": "muster.stack/1", "name": "site", "extends": "debian-13", "docker": {"verison": "1"}}
    (folder / "site.yml").write_text(json.dumps(site))
    play = []
    for number, (facts, role, variables, _said) in enumerate(CASES.values()):
        name, _colon, tasks_from = role.partition(":")
        included = {"name": f"muster.fleet.{name}", "tasks_from": tasks_from or "main"}
        run = {"ansible.builtin.include_role": included} if role else headers_task()
        known = {"ansible.builtin.set_fact": {**facts, **MACHINE, "cacheable": True}}
        heard = {
            "ansible.builtin.copy": {"content": "{{ ansible_failed_result.msg }}", "dest": f"{folder}/{number}.txt"},
            "check_mode": False,
        }
        one = {**run, "vars": {"muster_phases": ["install"], **variables}}
        play.append({"hosts": f"case{number}", "gather_facts": False, "tasks": [known, {"block": [one], "rescue": [heard]}]})
    (folder / "play.yml").write_text(json.dumps(play).replace("FOLDER", str(folder)))
    hosts = {f"case{number}": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable} for number in range(len(CASES))}
    (folder / "hosts.yml").write_text(json.dumps({"all": {"hosts": hosts}}))
    done = run_playbook(folder, "--check", "-i", folder / "hosts.yml", folder / "play.yml")
    texts = {name: folder / f"{number}.txt" for number, name in enumerate(CASES)}
    # A case that was not refused shows the output of the play instead.
    return {name: text.read_text() if text.exists() else done.stdout[-3000:] + done.stderr for name, text in texts.items()}


@pytest.mark.parametrize("case", CASES)
def test_the_role_refuses_in_one_sentence_before_it_changes_anything(said: dict[str, str], case: str) -> None:
    assert CASES[case][3] in said[case]
    assert "\n" not in said[case].strip()


@pytest.mark.parametrize(("stack", "version"), [("aws-2026.11", "2.7.0amzn2.0"), ("debian-13", "")])
def test_role_efa_expects_the_version_of_libfabric_that_the_stack_names_for_the_installer(stack: str, version: str) -> None:
    said = yaml.safe_load((ROOT / "roles/efa/vars/main.yml").read_text())["__efa_libfabric"]
    assert jinja2.Environment().from_string(said).render(phases_stack=stack_files.load(stack)) == version
