# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What roles ask Amazon Linux 2023 and Ubuntu for is in the recorded lists of their packages (tests/fixtures/packages)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from ansible_collections.muster.fleet.plugins.module_utils.hardware import kernel
from ansible_collections.muster.fleet.plugins.module_utils.stack import document
from ansible_collections.muster.fleet.plugins.plugin_utils import stack_files

ROOT = Path(__file__).parents[2]
BOTH = {
    "common": "common_packages + __common_time_packages",
    "storage": "__storage_packages",
    "local_nvme": "__local_nvme_packages",
    "nvidia_fabric": "__nvidia_fabric_tools",
    "efa": "__efa_gnupg",
    "aws_ofi_nccl": "__aws_ofi_nccl_build_packages",
    "trainer": "__trainer_packages",
}
CASES = [(system, role, asked) for system in ("Amazon", "Ubuntu") for role, asked in BOTH.items()]
CASES += [("Ubuntu", "users", "__users_packages"), ("Ubuntu", "slurm", "__slurm_build_packages + __slurm_packages")]
KNOWN: dict[str, Any] = {
    "__storage_serves": False,
    "__nvidia_fabric_components": ["nvlsm"],
    "slurm_functions": ["compute"],
    "slurm_install_method": "source",
    "slurm_apt_source": {},
}
# Names that stand in the tasks of roles for all systems.
EVERYWHERE = {"tar", "gzip", "unzip", "dkms", "make", "python3"}


def recorded(name: str) -> set[str]:
    lines = (ROOT / "tests/fixtures/packages" / f"{name}.txt").read_text().splitlines()
    return {line.split()[0] for line in lines if line and not line.startswith("#")}


def trusted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: trusted(each) for key, each in value.items()}
    return [trusted(each) for each in value] if isinstance(value, list) else trust_as_template(value) if isinstance(value, str) else value


def names(role: str, family: str, asked: str, **known: Any) -> set[str]:
    """Render what a role asks a family of systems for."""
    files = [ROOT / "roles" / role / path for path in ("defaults/main.yml", "vars/main.yml", f"vars/{family}.yml")]
    variables = {key: value for path in files if path.exists() for key, value in (trusted(yaml.safe_load(path.read_text())) or {}).items()}
    templar = Templar(
        DataLoader(), variables={**variables, **KNOWN, **known, "ansible_facts": {"architecture": "x86_64", "os_family": family}}
    )
    return set(templar.template(trust_as_template("{{ %s }}" % asked)))


@pytest.mark.parametrize(("system", "role", "asked"), CASES)
def test_the_names_are_recorded(system: str, role: str, asked: str) -> None:
    family, listed = {"Amazon": ("RedHat", "amzn2023"), "Ubuntu": ("Debian", "ubuntu")}[system]
    found = names(role, family, asked)
    assert found, "nothing to look at"
    assert found - recorded(listed) == set()


@pytest.mark.parametrize(
    ("system", "compiler", "release", "listed"),
    [("amzn", "gcc-c++", "6.1.131-143.221.amzn2023.x86_64", "amzn2023"), ("ubuntu", "g++", "6.8.0-1021-aws", "ubuntu")],
)
def test_the_names_of_kernels_and_compilers_are_recorded(system: str, compiler: str, release: str, listed: str) -> None:
    asked = {*kernel.header_packages(release, system), *kernel.extra_packages(release, system)}
    assert {each.partition("=")[0] for each in asked} | EVERYWHERE | {compiler} <= recorded(listed)


def test_what_the_stack_takes_from_amazon_linux_is_recorded() -> None:
    stack = stack_files.load("aws-2026.11")
    sources = [document.source_of(stack, name, "amzn2023", "x86_64") or {} for name in document.components(stack)]
    asked = {name for source in sources for name in source.get("distro", [])}
    assert asked == {"docker", "lustre-client"} <= recorded("amzn2023")
