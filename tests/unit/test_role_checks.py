# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Checks that roles write by a template, for nodes that no container can be: a template that says nothing would pass every node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
import jinja2.nativetypes
import pytest
import yaml
from ansible.plugins.filter import core

from ansible_collections.muster.fleet.plugins.filter import storage

ROLES = Path(__file__).parents[2] / "roles"
NATIVE = jinja2.nativetypes.NativeEnvironment(undefined=jinja2.StrictUndefined)
JINJA = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, autoescape=False)
JINJA.filters |= {"regex_replace": core.regex_replace, "muster.fleet.mount_unit": storage.FilterModule().filters()["mount_unit"]}


def checks(path: str, variables: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """{check: what it asks} of a role's template."""
    text = JINJA.from_string((ROLES / path).read_text()).render(variables)
    return {each.pop("check"): each for each in yaml.safe_load(text) or []}


def test_each_daemon_of_nvswitch_must_run_and_start_at_boot() -> None:
    units = {"__nvidia_fabric_units": ["nvidia-fabricmanager", "nvidia-imex"], "__nvidia_fabric_not_run": ""}
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
        (["fabricmanager", "nvlsm"], {"fabricmanager": {"version": "595.1"}}, {"fabricmanager_version": ("595.1", "595.2")}),
        (["imex"], {"imex": {"version": "595.2"}, "fabricmanager": {"version": "1"}}, {"imex_version": ("595.2", "595.2")}),
        (["imex"], {}, {"imex_version": ("none", "595.2")}),
        ([], {}, {}),
    ],
)
def test_each_has_the_version_of_the_driver(components: list[str], has: dict[str, Any], compared: dict[str, Any]) -> None:
    variables = {
        "nvidia_fabric_components": components,
        "__nvidia_fabric_facts": {"host": has},
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
def test_cuda_compiles_for_the_gpu_that_is_named(compile_for: str, options: list[str]) -> None:
    [task] = yaml.safe_load((ROLES / "cuda/tasks/verify_image.yml").read_text())
    [asked] = [each for each in task["muster.fleet.check"]["checks"] if each["check"] == "compiles"]
    variables = {"__cuda_compile": "SCRIPT", "__cuda_nvcc": "/usr/bin/nvcc", "cuda_compile_for": compile_for}
    assert NATIVE.from_string(asked["argv"]).render(variables) == ["sh", "-c", "SCRIPT", "/usr/bin/nvcc", *options]


@pytest.mark.parametrize(("from_system", "state"), [(True, "absent"), (False, "present")])
def test_shells_are_told_where_nvidia_s_own_toolkit_lies_and_no_other(from_system: bool, state: str) -> None:
    [_packages, profile] = yaml.safe_load((ROLES / "cuda/tasks/install.yml").read_text())
    [file] = profile["muster.fleet.config_files"]["files"]
    assert JINJA.from_string(file["state"]).render(__cuda_from_system=from_system) == state
    assert JINJA.from_string(file["content"]).render(__cuda_home="/usr/local/cuda").endswith("\nexport PATH=$PATH:/usr/local/cuda/bin")
