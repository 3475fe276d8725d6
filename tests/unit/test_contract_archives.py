# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The contract archives pass every check that the vendors' downloads have to pass, and what is wrong with one of them is one sentence."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.muster.fleet.plugins.module_utils import stack as logic
from ansible_collections.muster.fleet.plugins.plugin_utils import stack_files
from ansible_collections.muster.fleet.plugins.plugin_utils.downloads import DownloadError, cached

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("contract_archives", ROOT / ".config/molecule/contract_archives.py")
assert SPEC
assert SPEC.loader
contract_archives = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(contract_archives)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("contract")
    contract_archives.make(folder)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    shutil.copytree(made, tmp_path / "mirror")
    return tmp_path / "mirror"


def source(folder: Path, component: str, arch: str = "x86_64") -> dict:
    stack = stack_files.load(str(folder / "contract.yml"))
    assert logic.refusal(stack, component, "debian13", arch) == ""
    return logic.redirected(logic.source_of(stack, component, "debian13", arch), str(folder))


def components(folder: Path) -> list[str]:
    return [name for name in json.loads((folder / "contract.yml").read_text().split("\n", 1)[1]) if name in logic.COMPONENTS]


@pytest.mark.parametrize("arch", ["x86_64", "arm64"])
def test_all_are_verified_as_the_vendors_are(made: Path, tmp_path: Path, arch: str) -> None:
    names = components(made)
    assert {"efa", "aws_cli", "kubectl", "eksctl", "helm", "nvidia_container_toolkit", "enroot", "pyxis", "lustre_client"} <= set(names)
    for name in names:
        assert cached(source(made, name, arch), tmp_path).stat().st_size > 0


def test_they_stand_where_the_stack_of_aws_looks(made: Path) -> None:
    """Another address in the stack would leave them behind without a word."""
    aws, contract = (stack_files.load(name) for name in ("aws-2026.11", str(made / "contract.yml")))
    for name in set(components(made)) - {"aws_ofi_nccl", "lustre_client"}:
        both = [logic.source_of(stack, name, "debian13", "arm64") for stack in (aws, contract)]
        assert [each[each["kind"]] for each in both] == [both[0][both[0]["kind"]]] * 2
        assert aws[name]["version"] == contract[name]["version"]
    assert aws["efa"]["container_flags"] == contract["efa"]["container_flags"]


@pytest.mark.parametrize(("component", "pattern"), [("efa", "*/aws-efa-installer-*.tar.gz"), ("aws_cli", "*/awscli-*x86_64*.zip")])
def test_a_changed_archive_has_no_good_signature(folder: Path, tmp_path: Path, component: str, pattern: str) -> None:
    [archive] = folder.glob(pattern)
    archive.write_bytes(archive.read_bytes() + b"x")
    with pytest.raises(DownloadError, match=rf"^file:\S+{archive.name} has no good signature of the key [0-9A-F]{{40}}; do not use it\.$"):
        cached(source(folder, component), tmp_path)


def test_a_key_of_another_fingerprint_is_refused(folder: Path, tmp_path: Path) -> None:
    other = contract_archives.Archives(tmp_path / "other")
    try:
        for key in (folder / "efa-installer.amazonaws.com/aws-efa-installer.key", folder / "nvidia.github.io/libnvidia-container/gpgkey"):
            key.write_bytes(other.key)
        for component in ("efa", "nvidia_container_toolkit"):
            with pytest.raises(DownloadError, match=rf"has the fingerprint {other.fingerprint} and the stack says [0-9A-F]{{40}}"):
                cached(source(folder, component), tmp_path)
    finally:
        other.close()


@pytest.fixture
def installer(made: Path, tmp_path: Path) -> Path:
    [archive] = made.glob("efa-installer*/*.tar.gz")
    shutil.unpack_archive(archive, tmp_path)
    return tmp_path / "aws-efa-installer/efa_installer.sh"


def run(*argv: object) -> tuple[int, str]:
    done = subprocess.run(["bash", *map(str, argv)], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_installer_refuses_flags_that_the_vendors_has_not(installer: Path) -> None:
    assert run(installer, "--yess") == (1, "Error: unknown option --yess\n" + run(installer, "--help")[1])
    assert run(installer, "--help")[0] == 0


def test_the_roles_script_says_in_one_line_what_the_installer_said(made: Path, tmp_path: Path) -> None:
    script = ROOT / "roles/efa/files/run-efa-installer.sh"
    [archive] = made.glob("efa-installer*/*.tar.gz")
    shutil.copy(archive, tmp_path / "installer.tar.gz")
    log = tmp_path / "log"
    said = f"it ended with code 1 and says: Error: unknown option --yess; the whole output is in {log}.\n"
    assert run(script, tmp_path, log, "--yess") == (1, said)
    (tmp_path / "installer.tar.gz").write_bytes(archive.read_bytes()[:1000])
    assert run(script, tmp_path, log, "--yess") == (1, f"its archive cannot be unpacked; the whole output is in {log}.\n")


def test_every_program_says_what_it_is(made: Path) -> None:
    label = re.compile(rb"contract archive: keeps names, options and exit codes of [^;]+; not the vendor's")
    for path in [*made.glob("dl.k8s.io/**/kubectl"), made / "contract.yml"]:
        assert label.search(path.read_bytes()), path


def test_neuron_s_own_stands_where_the_stack_of_aws_looks(tmp_path: Path) -> None:
    maker = ROOT / "roles/neuron/molecule/default/contract_neuron.py"
    subprocess.run([sys.executable, maker, tmp_path / "mirror"], check=True, capture_output=True)
    aws, contract = (stack_files.load(name) for name in ("aws-2026.11", str(tmp_path / "mirror/contract.yml")))
    real, ours = (logic.source_of(stack, "neuron", system, "x86_64") for stack, system in ((aws, "ubuntu24.04"), (contract, "debian13")))
    assert real and ours
    assert (real["repository"], real["packages"], real["signature"]["key"]) == (
        ours["repository"],
        ours["packages"],
        ours["signature"]["key"],
    )
    assert cached(logic.redirected(ours, str(tmp_path / "mirror")), tmp_path).stat().st_size > 0
