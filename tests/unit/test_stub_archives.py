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

from ansible_collections.muster.fleet.plugins.module_utils.node import rehearsal
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


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archives of a fleet that rehearses an instance type."""
    folder = tmp_path_factory.mktemp("rehearsed") / "archives"
    subprocess.run([sys.executable, MAKER, folder, "aws-2026.11", "--rehearsal"], check=True, capture_output=True)
    return folder


def test_a_rehearsal_has_the_versions_and_addresses_of_its_stack(rehearsed: Path, tmp_path: Path) -> None:
    aws, stub = (stack_files.load(name) for name in ("aws-2026.11", str(rehearsed / "stub.yml")))
    assert stub["name"] == "aws-2026.11-rehearsal"
    assert set(logic.components(aws)) == set(logic.components(stub))
    # They come with EFA's installer, or no role of a Slurm fleet takes them from a stack.
    bundled = {"rdma_core", "libfabric", "openmpi", "slurm", "pmix", "nscq", "lustre_client"}
    for name in set(components(rehearsed)) - {"neuron"}:
        assert stub[name]["version"] == aws[name]["version"], name
        mine, real = (logic.source_of(stack, name, "debian13", "x86_64") for stack in (stub, aws))
        kind = mine["kind"]
        if kind == real["kind"]:
            assert mine[kind].endswith("/" + real[kind].split("://")[1]), name
        assert logic.refusal(stub, name, "debian13", "x86_64") == ""
        assert cached(mine, tmp_path, tmp_path / "lock.json").stat().st_size > 0
    assert set(logic.components(aws)) - set(components(rehearsed)) == bundled


def test_repositories_of_a_rehearsal_lie_where_the_nodes_have_them(rehearsed: Path) -> None:
    driver = logic.source_of(stack_files.load(str(rehearsed / "stub.yml")), "nvidia_driver", "debian13", "x86_64")
    assert driver and driver["repository"].startswith(f"file:///var/cache/muster/{rehearsed.name}/developer.download.nvidia.com/")


def test_what_a_rehearsal_installs_names_itself(rehearsed: Path, made: Path, tmp_path: Path) -> None:
    debs = sorted(rehearsed.rglob("*.deb"))
    assert len(debs) > 20
    for path in debs:
        name = path.name.split("_")[0]
        subprocess.run(["dpkg-deb", "--extract", path, tmp_path / name], check=True)
        assert rehearsal.of_packages([name], str(tmp_path / name / "usr/share/muster/rehearsal")) == [name]
        for program in (tmp_path / name).glob("usr/*bin/*"):
            assert rehearsal.in_file(str(program)), program
        for unit in (tmp_path / name).glob("usr/lib/systemd/system/*"):
            assert rehearsal.in_file(str(unit)), unit
    done = subprocess.run([tmp_path / "cuda-toolkit-13-2/usr/local/cuda/bin/nvcc", "--version"], capture_output=True, text=True, check=True)
    assert rehearsal.named(done.stderr) == ["nvcc"]
    assert "release 13.2," in done.stdout
    # Scenarios of roles test with stubs that are no rehearsal.
    assert not [path for path in made.rglob("*") if path.is_file() and rehearsal.in_file(str(path))]


@pytest.mark.skipif(not shutil.which("gcc"), reason="no compiler")
@pytest.mark.parametrize(("component", "target"), [("nccl", "src.build"), ("gdrcopy", "lib"), ("nccl_tests", "MPI=1")])
def test_what_a_rehearsal_builds_names_itself_when_it_is_loaded(rehearsed: Path, tmp_path: Path, component: str, target: str) -> None:
    [archive] = rehearsed.glob(f"github.com/*/{component.replace('_', '-')}/archive/refs/tags/*.tar.gz")
    subprocess.run(["tar", "-xf", archive, "-C", tmp_path, "--strip-components=1"], check=True)
    (tmp_path / "include").mkdir()
    (tmp_path / "include/mpi.h").write_text("int MPI_Initialized(int *there);\n")
    (tmp_path / "bin").symlink_to("build")
    subprocess.run(["make", target, f"MPI_HOME={tmp_path}", f"PREFIX={tmp_path}"], cwd=tmp_path, check=True, capture_output=True)
    built = [path for path in tmp_path.rglob("*") if path.suffix in (".2", ".so") or path.name.endswith("_perf")]
    assert built
    for path in built:
        subprocess.run(["strip", "--strip-unneeded", path], check=True)
        assert rehearsal.in_file(str(path)) == [component]
    load = f"import ctypes; ctypes.CDLL({str(built[0])!r})" if component != "nccl_tests" else ""
    argv = [sys.executable, "-c", load] if load else [next(path for path in built if path.name == "all_reduce_perf")]
    assert component in rehearsal.named(subprocess.run(argv, capture_output=True, text=True, check=False).stderr)
