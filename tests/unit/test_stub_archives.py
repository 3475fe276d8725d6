# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Stub archives pass every check of the vendors' downloads, and a damaged one is refused with one sentence."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.stack import document as logic
from ansible_collections.muster.fleet.plugins.plugin_utils import stack_files
from ansible_collections.muster.fleet.plugins.plugin_utils.downloads import DownloadError, cached

ROOT = Path(__file__).parents[2]
MAKER = ROOT / ".config/molecule/stub_archives"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stub")
    subprocess.run([sys.executable, MAKER, folder], check=True, capture_output=True)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    shutil.copytree(made, tmp_path / "mirror")
    return tmp_path / "mirror"


def source(folder: Path, component: str, arch: str = "x86_64") -> dict:
    stack = stack_files.load(str(folder / "stub.yml"))
    assert logic.refusal(stack, component, "debian13", arch) == ""
    return logic.redirected(logic.source_of(stack, component, "debian13", arch), str(folder))


def components(folder: Path) -> list[str]:
    return logic.components(json.loads((folder / "stub.yml").read_text().split("\n", 1)[1]))


@pytest.mark.parametrize("arch", ["x86_64", "arm64"])
def test_every_stub_is_verified_as_the_vendors_archive_is(made: Path, tmp_path: Path, arch: str) -> None:
    names = components(made)
    assert {"efa", "aws_cli", "kubectl", "eksctl", "helm", "nvidia_container_toolkit", "enroot", "pyxis", "lustre_client"} <= set(names)
    for name in names:
        assert cached(source(made, name, arch), tmp_path, tmp_path / "lock.json").stat().st_size > 0


def test_the_stubs_have_the_addresses_and_versions_of_the_aws_stack(made: Path) -> None:
    """A stub at another address would silently not be used."""
    aws, stub = (stack_files.load(name) for name in ("aws-2026.11", str(made / "stub.yml")))
    for name in set(components(made)) - {"aws_ofi_nccl", "lustre_client", "neuron"}:
        both = [logic.source_of(stack, name, "debian13", "arm64") for stack in (aws, stub)]
        assert [each[each["kind"]] for each in both] == [both[0][both[0]["kind"]]] * 2
        real, ours = ([(part["folder"], part["url"]) for part in each.get("parts", [])] for each in both)
        assert real == ours
        assert aws[name]["version"] == stub[name]["version"]
    assert aws["efa"]["container_flags"] == stub["efa"]["container_flags"]


@pytest.mark.parametrize(("component", "pattern"), [("efa", "*/aws-efa-installer-*.tar.gz"), ("aws_cli", "*/awscli-*x86_64*.zip")])
def test_a_changed_archive_has_no_good_signature(folder: Path, tmp_path: Path, component: str, pattern: str) -> None:
    [archive] = folder.glob(pattern)
    archive.write_bytes(archive.read_bytes() + b"x")
    with pytest.raises(DownloadError, match=rf"^file:\S+{archive.name} has no good signature of the key [0-9A-F]{{40}}; do not use it\.$"):
        cached(source(folder, component), tmp_path, tmp_path / "lock.json")


def test_a_key_of_another_fingerprint_is_refused(folder: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, MAKER, tmp_path / "other"], check=True, capture_output=True)
    for key in ("efa-installer.amazonaws.com/aws-efa-installer.key", "nvidia.github.io/libnvidia-container/gpgkey"):
        shutil.copy(tmp_path / "other" / key, folder / key)
    fingerprint = source(tmp_path / "other", "efa")["signature"]["fingerprint"]
    for component in ("efa", "nvidia_container_toolkit"):
        with pytest.raises(DownloadError, match=rf"has the fingerprint {fingerprint} and the stack says [0-9A-F]{{40}}"):
            cached(source(folder, component), tmp_path, tmp_path / "lock.json")


@pytest.fixture
def installer(made: Path, tmp_path: Path) -> Path:
    [archive] = made.glob("efa-installer*/*.tar.gz")
    shutil.unpack_archive(archive, tmp_path)
    return tmp_path / "aws-efa-installer/efa_installer.sh"


def run(*argv: object) -> tuple[int, str]:
    done = subprocess.run(["bash", *map(str, argv)], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_installer_refuses_unknown_flags(installer: Path) -> None:
    assert run(installer, "--yess") == (1, "Error: unknown option --yess\n" + run(installer, "--help")[1])
    assert run(installer, "--help")[0] == 0


def test_the_roles_script_repeats_the_installers_error_in_one_line(made: Path, tmp_path: Path) -> None:
    script = ROOT / "roles/efa/files/run-efa-installer.sh"
    [archive] = made.glob("efa-installer*/*.tar.gz")
    shutil.copy(archive, tmp_path / "installer.tar.gz")
    log = tmp_path / "log"
    said = f"it ended with code 1 and says: Error: unknown option --yess; the whole output is in {log}.\n"
    assert run(script, tmp_path, log, "--yess") == (1, said)
    (tmp_path / "installer.tar.gz").write_bytes(archive.read_bytes()[:1000])
    assert run(script, tmp_path, log, "--yess") == (1, f"its archive cannot be unpacked; the whole output is in {log}.\n")


def test_programs_and_stack_carry_the_label_of_a_stub(made: Path) -> None:
    label = re.compile(rb"stub archive: keeps names, options and exit codes of [^;]+; not the vendor's")
    for path in [*made.glob("dl.k8s.io/**/kubectl"), made / "stub.yml"]:
        assert label.search(path.read_bytes()), path


def test_neuron_s_stub_has_the_address_and_packages_of_aws(made: Path) -> None:
    aws = logic.source_of(stack_files.load("aws-2026.11"), "neuron", "ubuntu24.04", "x86_64")
    stub = logic.source_of(stack_files.load(str(made / "stub.yml")), "neuron", "debian13", "x86_64")
    assert aws and stub
    assert (aws["repository"], aws["packages"], aws["signature"]["key"]) == (stub["repository"], stub["packages"], stub["signature"]["key"])
