# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The script that builds a source archive: what it packs, and the one sentence of each way in which it fails."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml
from playbook import run_playbook

SCRIPT = Path(__file__).parents[2] / "roles/phases/files/source-build.sh"
GOOD = 'mkdir -p "$IMAGE$PREFIX/share"; echo "$VERSION $* $(cat text)" >"$IMAGE$PREFIX/share/said"'


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    (tmp_path / "tool-1.0").mkdir()
    # Of more than one block, so that half an archive is not a whole one.
    (tmp_path / "tool-1.0/text").write_text("hello\n")
    (tmp_path / "tool-1.0/noise").write_bytes(bytes(range(256)) * 100)
    path = tmp_path / "tool.tar.gz"
    with tarfile.open(path, "w:gz") as made:
        made.add(tmp_path / "tool-1.0", "tool-1.0")
    return path


def build(archive: Path, script: str, *options: str) -> tuple[int, str, Path]:
    folder = archive.parent / "build"
    folder.mkdir(exist_ok=True)
    (folder / "build.sh").write_text(script)
    result = folder / "result.tar.gz"
    words = ["tool", "1.0", str(archive), "/opt/tool", "tool-1.0-id", str(result), str(folder / "build.sh"), *options]
    done = subprocess.run(["bash", str(SCRIPT), *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr, result


def test_what_is_installed_is_packed_with_its_identity_and_sums(archive: Path) -> None:
    code, said, result = build(archive, GOOD, "one", "two")
    assert (code, said) == (0, "")
    with tarfile.open(result) as packed:
        files = {name: member.read().decode() for name in packed.getnames() if (member := packed.extractfile(name))}
    assert files.pop("./share/said") == "1.0 one two hello\n"
    assert files.pop("./.muster-build") == "tool-1.0-id\n"
    assert files.pop("./.muster-files").endswith("  ./share/said\n")
    assert files == {"./.muster-packages": ""}
    assert [path.name for path in result.parent.iterdir() if path.is_dir()] == [], "its folders are gone"


def test_parts_are_unpacked_into_their_folders(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tag's archive has empty folders instead of submodules."""
    parts = archive.parent / "build" / "parts"
    parts.mkdir(parents=True)
    shutil.copy(archive, parts / "deps+tool")
    monkeypatch.setenv("PARTS", "deps/tool")
    code, said, result = build(archive, 'mkdir -p "$IMAGE$PREFIX"; cp deps/tool/text "$IMAGE$PREFIX/text"')
    assert (code, said) == (0, "")
    with tarfile.open(result) as packed:
        assert "./text" in packed.getnames()
    (parts / "deps+tool").write_bytes(archive.read_bytes()[:100])
    code, said, _result = build(archive, GOOD)
    assert code == 1 and said.startswith(
        "tool 1.0 was not built: the archive of its part deps/tool cannot be unpacked; the whole output is in "
    )


# A program of the system, which loads only the C library or a few more.
COPY = 'install -D "$(readlink -f "$(command -v ls)")" "$IMAGE$PREFIX/bin/tool"'


@pytest.mark.skipif(not shutil.which("dpkg-query"), reason="no dpkg-query here")
def test_the_packages_of_its_libraries_are_named(archive: Path) -> None:
    code, said, result = build(archive, COPY)
    assert (code, said) == (0, "")
    with tarfile.open(result) as packed:
        assert "libc6" in packed.extractfile("./.muster-packages").read().decode().splitlines()


def test_a_library_of_no_package_is_an_error(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What dpkg-query 1.21.22 does with a file that it does not know.
    (tmp_path / "dpkg-query").write_text("#!/bin/sh\necho dpkg-query: no path found matching pattern $2 >&2\nexit 1\n")
    (tmp_path / "dpkg-query").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    code, said, result = build(archive, COPY)
    assert code != 0
    assert re.match(r"tool 1\.0 was not built: it loads /\S+, which no package has; the whole output is in \S+\.\n", said), said
    assert not result.exists()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo noise; echo 'a.cc:3: error: unknown type x'; echo 'make: *** [a.o] Error 1'; exit 2", "a.cc:3: error: unknown type x"),
        ("echo 'x.cu(7): error: identifier y is undefined.' >&2; false; " + GOOD, "x.cu(7): error: identifier y is undefined"),
        ("echo; echo 'configure.ac:14: error: No version found'; exit 1", "configure.ac:14: error: No version found"),
        ("echo only last words; exit 1", "only last words"),
        ("true", "its script installed nothing below /opt/tool"),
    ],
)
def test_a_build_that_fails_says_the_compiler_s_line_and_where_its_log_is(archive: Path, script: str, reason: str) -> None:
    code, said, result = build(archive, script)
    assert (code, said) == (1, f"tool 1.0 was not built: {reason}; the whole output is in {result.parent}/build.log.\n")
    assert not result.exists()


def test_half_an_archive(archive: Path) -> None:
    archive.write_bytes(archive.read_bytes()[:200])
    code, said, result = build(archive, GOOD)
    assert (code, said) == (
        1,
        f"tool 1.0 was not built: its archive cannot be unpacked; the whole output is in {result.parent}/build.log.\n",
    )


def test_the_first_host_that_lacks_a_build_makes_it(tmp_path: Path) -> None:
    """Hosts of two architectures have two builds; a host that has its build, or that did not look for one, makes none."""
    tasks = yaml.safe_load((SCRIPT.parents[1] / "tasks/source_build.yml").read_text())
    choose = next(task for task in tasks if "__phases_builders" in task.get("ansible.builtin.set_fact", {}))
    lacks = {"has": "", "x86-1": "x86", "arm-1": "arm", "x86-2": "x86", "arm-2": "arm"}
    hosts = {"other": None} | {name: {"__phases_lacks": {"stdout": lack}} for name, lack in lacks.items()}
    write = {
        "ansible.builtin.copy": {"content": "{{ __phases_builders }}", "dest": str(tmp_path / "{{ inventory_hostname }}"), "mode": "0600"}
    }
    play = {"hosts": "all", "gather_facts": False, "tasks": [choose, write]}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts, "vars": local}}))
    done = run_playbook(tmp_path, "-i", tmp_path / "hosts.yml", tmp_path / "play.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    for name in hosts:  # every host knows them
        builders = json.loads((tmp_path / name).read_text().replace("'", '"'))
        assert (builders["x86"], builders["arm"]) == ("x86-1", "arm-1")


def test_no_host_reads_all_variables_of_all_hosts() -> None:
    """`hostvars | dict2items` renders every variable of every host, for each host that asks: 89 s of a run over 200 hosts."""
    root = SCRIPT.parents[3]
    asked = [
        str(path.relative_to(root))
        for folder in ("roles", "playbooks")
        for path in (root / folder).rglob("*")
        if path.suffix in {".yml", ".j2"} and re.search(r"\bhostvars\s*(\||\.values|\.items)", path.read_text())
    ]
    # Prometheus' targets need some variables of each host, and one host alone asks for them: the server.
    assert asked == ["roles/monitoring/vars/main.yml"]
