# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Checks that roles render from templates, for nodes unlike any container. A template that renders no check would pass every node."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import jinja2.nativetypes
import pytest
import yaml
from ansible.plugins.filter import core

from ansible_collections.muster.fleet.plugins.filter import storage
from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue, nvidia_fabric
from ansible_collections.muster.fleet.plugins.module_utils.node.check import run_check

ROLES = Path(__file__).parents[2] / "roles"
NATIVE = jinja2.nativetypes.NativeEnvironment(undefined=jinja2.StrictUndefined)
JINJA = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, autoescape=False)
JINJA.filters |= {
    "regex_replace": core.regex_replace,
    "to_json": json.dumps,
    "muster.fleet.mount_unit": storage.FilterModule().filters()["mount_unit"],
}


def checks(path: str, variables: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """{name: check} as a role's template renders them."""
    text = JINJA.from_string((ROLES / path).read_text()).render(variables)
    return {each.pop("check"): each for each in yaml.safe_load(text) or []}


def test_no_role_takes_silence_for_success() -> None:
    """A tool that fails behind a pipe prints nothing, too."""
    silent = [
        f"{path.relative_to(ROLES)}: {each['check']}"
        for path in ROLES.glob("*/tasks/*.yml")
        for each in found_in(yaml.safe_load(path.read_text()))
        if "argv" in each and each.get("equals") == ""
    ]
    assert silent == []


FILES = {"slurm": ["sbin/slurmd", "lib/slurm/a.so"], "enroot_pyxis": ["spank.so"], "nccl_tests": ["bin/all_reduce_perf"]}


@pytest.mark.parametrize("role", FILES)
@pytest.mark.parametrize(
    ("ldd", "status"), [("echo 'libm.so.6 => /lib/libm.so.6'", "passed"), ("echo 'libx.so => not found'", "failed"), ("exit 1", "failed")]
)
def test_libraries_are_found_only_where_ldd_says_so(tmp_path: Path, monkeypatch, role: str, ldd: str, status: str) -> None:
    tasks = yaml.safe_load((ROLES / role / "tasks/verify_image.yml").read_text())
    [check] = [each for each in found_in(tasks) if each.get("check") == "libraries_found"]
    for each in FILES[role]:
        (tmp_path / "1" / each).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "1" / each).touch()
    (tmp_path / "ldd").write_text(f"#!/bin/sh\n{ldd}\n")
    (tmp_path / "ldd").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    argv = [re.sub(r"{{.*}}", str(tmp_path / "1"), part.replace("/opt/slurm", str(tmp_path))) for part in check["argv"]]
    made = {key: value for key, value in check.items() if key != "needs"}
    assert run_check({**made, "argv": argv}, role, "image")["status"] == status


@pytest.mark.parametrize(
    ("runs", "modinfo", "status"),
    [("3.1.0", "echo 3.1.0", "passed"), ("3.1.0", "echo 3.2.0", "failed"), ("3.1.0", "exit 1", "failed"), ("", "exit 1", "not_run")],
)
def test_two_versions_of_efa_that_nobody_read_are_not_the_same(tmp_path: Path, monkeypatch, runs: str, modinfo: str, status: str) -> None:
    tasks = yaml.safe_load((ROLES / "efa/tasks/verify_node.yml").read_text())
    [check] = [each for each in found_in(tasks) if each.get("check") == "running_module"]
    if runs:
        (tmp_path / "version").write_text(runs + "\n")
    (tmp_path / "modinfo").write_text(f"#!/bin/sh\n{modinfo}\n")
    (tmp_path / "modinfo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    argv = [part.replace("/sys/module/efa/version", f"{tmp_path}/version") for part in check["argv"]]
    made = {key: value for key, value in check.items() if key not in ("needs", "not_run")}
    assert run_check({**made, "argv": argv}, "efa", "node")["status"] == status


def found_in(value: Any) -> Iterator[dict[str, Any]]:
    """All mappings in a document."""
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from found_in(each)


def test_each_daemon_of_nvswitch_must_run_and_start_at_boot() -> None:
    units = {"__nvidia_fabric_here": ["nvidia-fabricmanager", "nvidia-imex"], "__nvidia_fabric_not_run": ""}
    found = checks("nvidia_fabric/templates/units.yml.j2", units)
    assert {name: (each["unit"], each["enabled"], each["not_run"]) for name, each in found.items()} == {
        "nvidia_fabricmanager": ("nvidia-fabricmanager", True, ""),
        "nvidia_imex": ("nvidia-imex", True, ""),
    }
    units["__nvidia_fabric_not_run"] = "no GPU here"
    assert {each["not_run"] for each in checks("nvidia_fabric/templates/units.yml.j2", units).values()} == {"no GPU here"}


@pytest.mark.parametrize(
    ("components", "has", "compared"),
    [
        (["fabricmanager"], {"fabricmanager": {"version": "595.1"}}, {"fabricmanager_version": ("595.1", "595.2")}),
        (["imex"], {"imex": {"version": "595.2"}, "fabricmanager": {"version": "1"}}, {"imex_version": ("595.2", "595.2")}),
        (["imex"], {}, {"imex_version": ("none", "595.2")}),
        ([], {}, {}),
    ],
)
def test_each_component_must_have_the_version_of_the_driver(components: list[str], has: dict[str, Any], compared: dict[str, Any]) -> None:
    variables = {
        "__nvidia_fabric_components": components,
        "__nvidia_fabric_facts": {"host": has, "rehearsed": {}},
        "__nvidia_fabric_version": "595.2",
    }
    found = checks("nvidia_fabric/templates/versions.yml.j2", variables)
    assert {name: (each["value"], each["equals"]) for name, each in found.items()} == compared


def test_each_file_system_of_lustre_must_be_mounted_from_its_own_source() -> None:
    mounts = [{"source": "fs-1@tcp:/a", "path": "/fsx"}, {"source": "fs-2@tcp:/b", "path": "/lustre/my data"}]
    found = checks("lustre_client/templates/mount_checks.yml.j2", {"lustre_client_mounts": mounts, "__lustre_client_not_run": ""})
    assert {name: (each["equals"], each["argv"][-1], each["not_run"]) for name, each in found.items()} == {
        "mounted_fsx": ("fs-1@tcp:/a", "/fsx", ""),
        "mounted_lustre_my_data": ("fs-2@tcp:/b", "/lustre/my data", ""),
    }


@pytest.mark.parametrize(("compile_for", "options"), [("", []), ("90", ["-arch=sm_90"])])
def test_nvcc_compiles_for_the_named_gpu(compile_for: str, options: list[str]) -> None:
    [task] = yaml.safe_load((ROLES / "cuda/tasks/verify_image.yml").read_text())
    [asked] = [each for each in task["muster.fleet.check"]["checks"] if each["check"] == "compiles"]
    variables = {"__cuda_compile": "SCRIPT", "__cuda_nvcc": "/usr/bin/nvcc", "cuda_compile_for": compile_for}
    assert NATIVE.from_string(asked["argv"]).render(variables) == ["sh", "-c", "SCRIPT", "/usr/bin/nvcc", *options]


@pytest.mark.parametrize(("from_system", "state"), [(True, "absent"), (False, "present")])
def test_only_nvidia_s_own_toolkit_is_added_to_the_path_of_shells(from_system: bool, state: str) -> None:
    [_packages, profile] = yaml.safe_load((ROLES / "cuda/tasks/install.yml").read_text())
    [file] = profile["muster.fleet.config_files"]["files"]
    assert JINJA.from_string(file["state"]).render(__cuda_from_system=from_system) == state
    assert JINJA.from_string(file["content"]).render(__cuda_home="/usr/local/cuda").endswith("\nexport PATH=$PATH:/usr/local/cuda/bin")


def image_checks(role: str, **variables: Any) -> dict[str, dict[str, Any]]:
    """{name: check} of a role's verify_image, whose lists depend on the variables."""
    task = yaml.safe_load((ROLES / role / "tasks/verify_image.yml").read_text())[-1]
    wanted = task["muster.fleet.check"]["checks"]
    found = NATIVE.from_string(wanted).render(variables | task["vars"]) if isinstance(wanted, str) else wanted
    return {each["check"]: each for each in found}


@pytest.mark.parametrize("role", sorted(path.parts[-3] for path in ROLES.glob("*/tasks/install.yml") if "source_build" in path.read_text()))
def test_a_build_from_source_is_compared_file_by_file(role: str, tmp_path: Path) -> None:
    found = image_checks(
        role, **{f"__{role}_from_source": True, "enroot_pyxis_with_pyxis": True, f"__{role}_module": False, f"{role}_inspector": False}
    )
    for asked in (each for name, each in found.items() if name in ("files_as_built", "enroot_as_built")):
        compare_file_by_file(role, asked, tmp_path)
    assert "files_as_built" in found


def compare_file_by_file(role: str, asked: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "library").write_text("as built")
    (tmp_path / ".muster-files").write_text(f"{hashlib.sha256(b'as built').hexdigest()}  ./library\n")
    command = [*asked["argv"][:-1], str(tmp_path)]
    assert subprocess.run(command, check=False).returncode == 0
    for change in (lambda file: file.write_text("another"), Path.unlink):
        change(tmp_path / "library")
        assert subprocess.run(command, check=False, capture_output=True).returncode != 0
    # The install phase is skipped while the artefact is there, so the remedy removes the folder with it.
    main = (ROLES / role / "tasks/main.yml").read_text()
    folder = asked["argv"][-1].strip("{ }")
    assert f"{folder} ~ '/.muster-build'" in main or f"{{{{ {folder} }}}}/.muster-build" in main
    assert asked["remedy"].replace("{{ ", "").startswith(f"Remove the folder {folder}")


@pytest.mark.parametrize(
    ("from_source", "first", "remedy"),
    [
        (True, ["files_as_built", "found"], "Remove the folder aws_ofi_nccl_prefix and run the install phase of role aws_ofi_nccl again, "),
        (
            False,
            ["found"],
            "Remove the package libnccl-ofi and /opt/amazon/efa_installed_packages and run the install phase of role efa again, ",
        ),
    ],
)
def test_the_remedy_of_a_missing_plugin_names_the_role_that_installed_it(from_source: bool, first: list[str], remedy: str) -> None:
    known = {"__aws_ofi_nccl_from_source": from_source}
    found = image_checks("aws_ofi_nccl", **known)
    assert [*found][: len(first)] == first and [*found][len(first)] == "libraries"
    assert NATIVE.from_string(found["found"]["needs"]).render(known) == first[:-1]
    assert JINJA.from_string(found["found"]["remedy"]).render(known).startswith(remedy)


@pytest.mark.parametrize(("disks", "status"), [(8, "passed"), (7, "failed"), (0, "failed")])
def test_a_node_that_lacks_a_disk_of_its_type_is_named(tmp_path: Path, monkeypatch, disks: int, status: str) -> None:
    [check] = [each for each in found_in(tasks_of("local_nvme", "verify_node")) if each.get("check") == "disks"]
    model = "Amazon EC2 NVMe Instance Storage"
    (tmp_path / "lsblk").write_text("#!/bin/sh\necho Amazon Elastic Block Store\n" + f"echo '{model}'\n" * disks)
    (tmp_path / "lsblk").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    made = {**check, "argv": [*check["argv"][:-1], model], "equals": "8", "not_run": ""}
    assert run_check(made, "local_nvme", "node")["status"] == status


@pytest.mark.parametrize(("pages", "status"), [("5128", "passed"), ("0", "failed")])
def test_a_node_without_huge_pages_is_named(tmp_path: Path, pages: str, status: str) -> None:
    [check] = [each for each in found_in(tasks_of("efa", "verify_node")) if each.get("check") == "huge_pages"]
    (tmp_path / "nr_hugepages").write_text(pages + "\n")
    made = {**check, "argv": ["cat", str(tmp_path / "nr_hugepages")], "not_run": ""}
    assert run_check(made, "efa", "node")["status"] == status


@pytest.mark.parametrize("kind", [name for name in catalogue.names() if nvidia_fabric.components(catalogue.instance_type(name))])
def test_the_local_fleet_allows_the_checks_of_nvswitch_that_a_container_cannot_run(kind: str) -> None:
    wanted = nvidia_fabric.components(catalogue.instance_type(kind))
    units = [nvidia_fabric.UNITS[name] for name in wanted if name in nvidia_fabric.UNITS]
    variables = {
        "__nvidia_fabric_components": wanted,
        "__nvidia_fabric_facts": {"host": {}, "rehearsed": {}},
        "__nvidia_fabric_version": "595.2",
        "__nvidia_fabric_kernel": {"target": ""},
        "phases_in_container": True,
        "__nvidia_fabric_here": units,
        "__nvidia_fabric_not_run": "",
    }
    names = [name for template in ("versions", "units") for name in checks(f"nvidia_fabric/templates/{template}.yml.j2", variables)]
    kept = yaml.safe_load((ROLES.parent / "inventory/local/group_vars/all.yml").read_text())["__local_rehearsed"]
    groups = ("muster_gpu", "muster_efa", "muster_type_" + re.sub(r"\W", "_", kind))
    allowed = {name for group in groups for name in kept.get(group, [])}
    assert names and {f"nvidia_fabric.{name}" for name in names} | {f"stack.drift_{name}" for name in wanted} <= allowed


def tasks_of(role: str, name: str) -> Any:
    return yaml.safe_load((ROLES / role / "tasks" / f"{name}.yml").read_text())
