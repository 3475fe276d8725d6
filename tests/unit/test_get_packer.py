# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""tools/get_packer.py: which Packer it takes, and how it first verifies a release or a module."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

import get_packer
import pytest

from ansible_collections.muster.fleet.plugins.plugin_utils.downloads import DownloadError

NAME, VERSION = "packer-plugin-amazon", "1.8.2"
BASE = f"/{NAME}/{VERSION}/{NAME}_{VERSION}"


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_the_first_packer_on_path_that_is_new_enough_is_taken(tmp_path: Path) -> None:
    script(tmp_path / "cracklib/packer", "echo 0 0; exit 1")
    script(tmp_path / "old/packer", "echo 'Packer v1.6.6'")
    link = script(tmp_path / "venv/packer", "echo 'Packer v1.15.4'")
    new = script(tmp_path / "new/packer", "echo 'Packer v1.14.0'; echo 'Your version of Packer is out of date!'")
    path = ":".join(str(tmp_path / each) for each in ("cracklib", "", "old", "venv", "new"))
    assert get_packer.on_path(path, link) == str(new)
    new.unlink()
    assert get_packer.on_path(path, link) == ""


@pytest.fixture
def release(server, signed, tmp_path: Path):
    """Puts a release on the server; a call fetches it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as content:
        content.writestr("LICENSE.txt", "a licence")
        content.writestr(f"{NAME}_v{VERSION}_x5.0", "a program")
    archive = "{}_{}_{}_{}.zip".format(NAME, VERSION, *get_packer.target())
    sums = f"{hashlib.sha256(buffer.getvalue()).hexdigest()}  {archive}\n".encode()
    server.files |= {
        f"{BASE}_SHA256SUMS": sums,
        f"{BASE}_SHA256SUMS.sig": signed["sign"](sums),
        f"/{NAME}/{VERSION}/{archive}": buffer.getvalue(),
        "/key": signed["key"],
    }
    address = f"http://127.0.0.1:{server.server_address[1]}"
    return lambda: get_packer.from_release(NAME, VERSION, tmp_path, get_packer.Vendor(address, f"{address}/key", signed["fingerprint"]))


def test_a_signed_release_is_taken(release, tmp_path: Path) -> None:
    program = release()
    assert program.read_text() == "a program"
    assert program.stat().st_mode & 0o111
    assert [each.name for each in tmp_path.iterdir()] == [f"{NAME}-{VERSION}"]


@pytest.mark.parametrize("damaged", ["_SHA256SUMS", "_SHA256SUMS.sig", "zip", "key", "missing"])
def test_a_release_that_is_not_as_signed_is_refused(release, server, tmp_path: Path, damaged: str) -> None:
    path = next(each for each in server.files if each.endswith(damaged) or damaged == "missing")
    if damaged == "missing":
        del server.files[f"{BASE}_SHA256SUMS"]
    else:
        server.files[path] = bytes([server.files[path][0] ^ 1]) + server.files[path][1:]
    with pytest.raises(DownloadError):
        release()
    assert list(tmp_path.iterdir()) == []


def test_without_a_release_it_is_built_as_its_own_main_module(server, tmp_path: Path, monkeypatch) -> None:
    module = tmp_path / "module"
    module.mkdir()
    go = script(
        tmp_path / "bin/go",
        f"""case $1 in
        mod) echo "$4" >{tmp_path}/asked; echo '{{"Dir": "{module}"}}' ;;
        build) pwd >{tmp_path}/where; while [ "$1" != -o ]; do echo "$1"; shift; done >{tmp_path}/flags; echo built >"$2" ;;
        esac""",
    )
    monkeypatch.setattr(get_packer, "find_go", lambda: str(go))
    address = f"http://127.0.0.1:{server.server_address[1]}"
    made = get_packer.obtain(NAME, VERSION, tmp_path, get_packer.Vendor(address, f"{address}/key"))
    assert made.read_text() == "built\n"
    assert (tmp_path / "asked").read_text().strip() == f"github.com/hashicorp/{NAME}@v{VERSION}"
    assert (tmp_path / "where").read_text().strip() == str(module)
    assert f"-X github.com/hashicorp/{NAME}/version.VersionPrerelease=\n" in (tmp_path / "flags").read_text()


def test_what_is_in_the_cache_is_asked_of_nobody(server, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(get_packer, "find_go", lambda: "")
    (tmp_path / f"{NAME}-{VERSION}").write_text("made before")
    get_packer.obtain(NAME, VERSION, tmp_path, get_packer.Vendor(f"http://127.0.0.1:{server.server_address[1]}"))
    assert not server.asked


def test_with_neither_one_sentence_says_what_to_install(server, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(get_packer, "find_go", lambda: "")
    with pytest.raises(get_packer.PackerError, match="install packer or Go") as error:
        get_packer.obtain(NAME, VERSION, tmp_path, get_packer.Vendor(f"http://127.0.0.1:{server.server_address[1]}"))
    assert "404" in str(error.value)


def test_a_full_disk_builds_nothing(release, server, signed, tmp_path: Path, monkeypatch, *, capsys) -> None:
    """A build needs more room than the release."""
    work = tmp_path / f"{NAME}-{VERSION}.release"
    work.mkdir()
    (work / NAME).symlink_to("/dev/full")
    address = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setattr(get_packer, "find_go", lambda: "/usr/bin/false")
    with pytest.raises(get_packer.PackerError) as error:
        get_packer.obtain(NAME, VERSION, tmp_path, get_packer.Vendor(address, f"{address}/key", signed["fingerprint"]))
    assert str(error.value) == f"{work} has no space for {NAME} {VERSION} (No space left on device); free some."
    assert not work.exists()
    (tmp_path / "muster").write_text("a file")
    assert get_packer.main({"XDG_CACHE_HOME": str(tmp_path)}) == 1
    assert " cannot take Packer (Not a directory)" in capsys.readouterr().err
