# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""make stack-sums and make mirror, against a server on loopback that also cuts transfers, fails and lacks files."""

from __future__ import annotations

from http.server import ThreadingHTTPServer
from pathlib import Path

import mirror
import pytest
import stack_sums
import yaml
from download_server import ARCHIVE, SHA256

from ansible_collections.muster.fleet.plugins.plugin_utils import downloads


@pytest.fixture
def stack(server: ThreadingHTTPServer, tmp_path: Path):
    """Writes a stack with one component, whose source is at the server, and returns the file's path."""
    host = f"http://127.0.0.1:{server.server_address[1]}"

    def write(**source: object) -> str:
        filled = yaml.safe_load(yaml.safe_dump({"url": "HOST/a/x-{version}.tar.gz", **source}).replace("HOST", host))
        if "repository" in filled:
            del filled["url"]
        document = {"schema": "muster.stack/1", "name": "x", "systems": ["debian13"], "architectures": ["x86_64"]}
        path = tmp_path / "x.yml"
        path.write_text(yaml.safe_dump({**document, "gdrcopy": {"version": "1.0", "sources": [filled]}}))
        return str(path)

    return write


def place(server: ThreadingHTTPServer, to: Path, path: str = "a/x-1.0.tar.gz") -> Path:
    return to / f"127.0.0.1:{server.server_address[1]}" / path


def signature(signed: dict, **other: str) -> dict:
    return {"key": "HOST/key", "fingerprint": signed["fingerprint"], **other}


def test_a_mirror_is_filled_once_and_goes_on_where_it_was_cut(server, stack, tmp_path: Path, capsys) -> None:
    server.trouble["/a/x-1.0.tar.gz"] = [503, "cut"]
    assert mirror.main([stack(sha256=SHA256), str(tmp_path / "m")], wait=0) == 0
    assert place(server, tmp_path / "m").read_bytes() == ARCHIVE
    assert server.ranges == [0, 100], "the third try asks for what the second did not bring"
    assert "fetched and good" in capsys.readouterr().out
    assert mirror.main([stack(sha256=SHA256), str(tmp_path / "m")], wait=0) == 0
    assert "was there and is good" in capsys.readouterr().out
    assert server.asked["/a/x-1.0.tar.gz"] == 3


def test_another_mirror_serves_as_well_as_the_host(server, stack, tmp_path: Path) -> None:
    document = stack(sha256=SHA256)
    assert mirror.main([document, str(tmp_path / "one")], wait=0) == 0
    server.files.clear()
    assert mirror.main([document, str(tmp_path / "two"), "--from", str(tmp_path / "one")], wait=0) == 0
    assert place(server, tmp_path / "two").read_bytes() == ARCHIVE


@pytest.mark.parametrize(
    "wrong",
    [
        ([], "0" * 64, f"has the sha256 {SHA256} and the stack says {'0' * 64}; the file was removed.", 1),
        ([404], SHA256, "answers 404 Not Found; correct its version or address in the stack, or fill the mirror.", 1),
        ([503] * 4, SHA256, "could not be fetched in 4 tries (503 Service Unavailable); try again, it goes on where it stopped.", 4),
        (["cut"] * 4, SHA256, "could not be fetched in 4 tries (the connection ended after 100 of ", 4),
    ],
)
def test_what_is_wrong_is_left_out_with_one_sentence(server, stack, tmp_path: Path, capsys, wrong) -> None:
    trouble, sum_, said, asked = wrong
    server.trouble["/a/x-1.0.tar.gz"] = trouble
    assert mirror.main([stack(sha256=sum_), str(tmp_path / "m")], wait=0) == 1
    out = capsys.readouterr().out
    assert "LEFT OUT: " in out and said in out
    assert not place(server, tmp_path / "m").exists()
    assert server.asked["/a/x-1.0.tar.gz"] == asked


def test_a_signature_is_checked_by_the_key_s_fingerprint(server, stack, signed, tmp_path: Path, capsys) -> None:
    server.files.update({"/key": signed["key"], "/a/x-1.0.tar.gz.sig": signed["signature"]})
    document = stack(signature=signature(signed))
    assert stack_sums.main([document], wait=0) == 0
    assert f"signed by {signed['fingerprint']}, sha256: {SHA256}" in capsys.readouterr().out
    assert mirror.main([document, str(tmp_path / "m")], wait=0) == 0
    assert place(server, tmp_path / "m", "key").exists() and place(server, tmp_path / "m", "a/x-1.0.tar.gz.sig").exists()

    server.files["/a/x-1.0.tar.gz"] = ARCHIVE[:-1] + b"!"
    assert stack_sums.main([document], wait=0) == 1
    assert f"has no good signature of the key {signed['fingerprint']}; do not use it." in capsys.readouterr().out
    assert stack_sums.main([stack(signature=signature(signed, fingerprint="A" * 40))], wait=0) == 1
    assert f"has the fingerprint {signed['fingerprint']} and the stack says {'A' * 40}." in capsys.readouterr().out


def test_a_repository_is_known_by_its_key(server, stack, signed, capsys) -> None:
    server.files["/key"] = signed["key"]
    assert stack_sums.main([stack(repository="HOST/debian", signature=signature(signed))], wait=0) == 0
    assert f"the key is {signed['fingerprint']}" in capsys.readouterr().out


def test_a_key_for_which_only_https_vouches_is_mirrored_and_pinned(stack, signed, tmp_path: Path, capsys, monkeypatch) -> None:
    """The files come from another mirror, because the server here has no HTTPS."""
    source = tmp_path / "from" / "vendor.example" / "key"
    source.parent.mkdir(parents=True)
    source.write_bytes(signed["key"])
    document = stack(repository="https://vendor.example/debian", signature={"key": "https://vendor.example/key", "https": "nobody says"})
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for _again in range(2):
        assert mirror.main([document, str(tmp_path / "m"), "--from", str(tmp_path / "from")], wait=0) == 0
    assert (tmp_path / "m" / "vendor.example" / "key").read_bytes() == signed["key"]
    assert signed["fingerprint"] in (tmp_path / "state" / "muster" / "lock.json").read_text()
    capsys.readouterr()
    assert stack_sums.main([document, "--mirror", str(tmp_path / "from")], wait=0) == 0
    assert f"the key is {signed['fingerprint']}; only HTTPS vouches for it (nobody says)" in capsys.readouterr().out


def test_a_mirror_takes_the_renewed_key(server, stack, signed, stale, tmp_path: Path, *, capsys) -> None:
    """What fails its check does not stay in the folder, neither the file nor its key."""
    files = {"/key": stale["key"], "/a/x-1.0.tar.gz.sig": stale["signature"]}
    server.files.update(files)
    assert mirror.main([stack(signature=signature(stale)), str(tmp_path / "m")], wait=0) == 1
    assert f"{stale['fingerprint']}, {stale['said']}; do not use it" in capsys.readouterr().out
    server.files.update({"/key": signed["key"], "/a/x-1.0.tar.gz.sig": signed["signature"]})
    assert mirror.main([stack(signature=signature(signed)), str(tmp_path / "m")], wait=0) == 0


def test_sums_are_compared_and_new_ones_printed(server, stack, capsys) -> None:
    assert stack_sums.main([stack(sha256=SHA256)], wait=0) == 0
    assert f"sha256: {SHA256} as committed" in capsys.readouterr().out
    assert stack_sums.main([stack(sha256="0" * 64)], wait=0) == 1
    assert f"WRONG: http://127.0.0.1:{server.server_address[1]}/a/x-1.0.tar.gz has the sha256 {SHA256}" in capsys.readouterr().out


def test_a_stack_that_cannot_be_is_one_sentence(stack, tmp_path: Path, capsys) -> None:
    for tool in (stack_sums, mirror):
        assert tool.main([stack(sha512="x"), *([str(tmp_path)] if tool is mirror else [])]) == 1
        assert capsys.readouterr().out.startswith("Stack x: source 1 of component gdrcopy has ")


def test_a_server_that_has_a_shorter_file_now_is_asked_from_the_beginning(server, tmp_path: Path) -> None:
    (tmp_path / "x.part").write_bytes(b"old" * 5000)
    server.trouble["/a/x-1.0.tar.gz"] = [416]
    downloads.fetch(f"http://127.0.0.1:{server.server_address[1]}/a/x-1.0.tar.gz", tmp_path / "x", wait=0)
    assert (tmp_path / "x").read_bytes() == ARCHIVE
