# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A job's file is read with its user's rights, through no link, and in parts."""

from __future__ import annotations

import base64
import os
import pwd
from pathlib import Path
from unittest.mock import Mock

import pytest

from ansible_collections.muster.fleet.plugins.action import job_file as action
from ansible_collections.muster.fleet.plugins.modules import job_file as module

ME = pwd.getpwuid(os.getuid()).pw_name


@pytest.fixture
def fetch(call, tmp_path: Path):
    return lambda name, **more: call(module, src=str(tmp_path / name), dest="x", **{"user": ME, **more})


def test_a_part_of_a_file(fetch, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    (tmp_path / "a").chmod(0o600)
    found = fetch("a", offset=3, length=4)
    assert (found["exists"], found["size"], found["mode"], base64.b64decode(found["content"])) == (True, 10, "0600", b"3456")
    assert not found["changed"]


def test_what_is_no_file_is_not_opened(fetch, tmp_path: Path) -> None:
    (tmp_path / "real").write_text("x")
    (tmp_path / "link").symlink_to("real")
    os.mkfifo(tmp_path / "pipe")
    assert fetch("link")["msg"].endswith("link: it is a link; remove it.")
    assert fetch("pipe")["msg"].endswith("it is not a regular file.")
    assert fetch(".")["failed"]
    assert fetch("none")["exists"] is False
    assert fetch("none", required=True)["msg"].endswith("none does not exist on this host; the job did not write it.")
    assert "The user nobody-has-it does not exist" in fetch("real", user="nobody-has-it")["msg"]


@pytest.mark.skipif(os.geteuid() != 0, reason="not_run: only root can become another user")
def test_root_reads_only_what_the_user_may_read(fetch, tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == "root" and str(folder).startswith("/tmp/"):
            folder.chmod(0o755)
    (tmp_path / "secret").write_text("s3cret")
    (tmp_path / "secret").chmod(0o600)
    found = fetch("secret", user="nobody")
    assert found["msg"] == f"User nobody cannot read {tmp_path}/secret: Permission denied."
    assert os.geteuid() == 0 and os.getegid() == 0
    (tmp_path / "secret").chmod(0o644)
    assert base64.b64decode(fetch("secret", user="nobody")["content"]) == b"s3cret"


@pytest.fixture
def copy(call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A function that fetches a file as a task does, and returns the task's result."""

    def run_here(_self, module_name, module_args, task_vars):
        assert module_name == "muster.fleet.job_file"
        return call(module, **{key: str(value) for key, value in module_args.items()})

    monkeypatch.setattr(action.ActionModule, "_execute_module", run_here)

    def run(src: Path, dest: Path, **more):
        task = Mock(args={"src": str(src), "dest": str(dest), "user": ME, **more}, async_val=0, check_mode=False, diff=False)
        return action.ActionModule(task, Mock(), Mock(), Mock(), Mock(), Mock()).run(task_vars={})

    return run


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize(("mode", "copied"), [("0600", 0o600), ("0640", 0o640), ("0644", 0o644), ("0755", 0o644), ("0400", 0o600)])
def test_the_copy_has_the_mode_of_the_file_without_rights_to_execute(copy, tmp_path: Path, mode: str, copied: int, mask: int) -> None:
    (tmp_path / "a").write_text("output\n")
    (tmp_path / "a").chmod(int(mode, 8))
    dest = tmp_path / "runs" / "output.txt"
    dest.parent.mkdir()
    # An earlier run may have left a copy that everybody can read.
    dest.write_text("old")
    dest.chmod(0o666)
    before = os.umask(mask)
    try:
        result = copy(tmp_path / "a", dest)
    finally:
        os.umask(before)
    assert (result["exists"], result["mode"], result["left_out"]) == (True, mode, 0)
    assert (dest.read_text(), dest.stat().st_mode & 0o7777) == ("output\n", copied)
    assert os.listdir(dest.parent) == ["output.txt"]


def test_a_file_that_went_away_leaves_no_part_of_a_copy(copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("output\n" * 4)
    monkeypatch.setattr(action, "PART", 16)
    part = action.ActionModule._part

    def gone(self, asked, task_vars, offset, length):
        if offset:
            (tmp_path / "a").unlink()
        return part(self, asked, task_vars, offset, length)

    monkeypatch.setattr(action.ActionModule, "_part", gone)
    result = copy(tmp_path / "a", tmp_path / "runs/output.txt")
    assert (result["failed"], result["msg"]) == (True, f"{tmp_path}/a went away while it was read.")
    assert os.listdir(tmp_path / "runs") == []


@pytest.mark.parametrize(("size", "asked"), [(0, 1), (1, 1), (16, 1), (17, 2), (40, 3)])
def test_a_short_file_is_asked_for_once(copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, asked: int) -> None:
    monkeypatch.setattr(action, "PART", 16)
    calls = []
    part = action.ActionModule._part
    monkeypatch.setattr(action.ActionModule, "_part", lambda *args: calls.append(args) or part(*args))
    (tmp_path / "a").write_bytes(bytes(range(size)))
    copy(tmp_path / "a", tmp_path / "runs/a")
    assert (tmp_path / "runs/a").read_bytes() == bytes(range(size))
    assert len(calls) == asked


@pytest.mark.parametrize("size", [0, 1, 99, 100])
def test_a_short_file_is_copied_whole(size: int) -> None:
    content = bytes(range(100))[:size]
    assert b"".join(cut(content[offset : offset + length]) for offset, length, cut in action.parts(size, 100)) == content


def test_a_long_file_loses_whole_lines_of_its_middle(monkeypatch) -> None:
    monkeypatch.setattr(action, "PART", 16)
    content = b"".join(b"line %03d\n" % number for number in range(100))
    spans = [(offset, length) for offset, length, _cut in action.parts(len(content), 400)]
    assert sum(length for _offset, length in spans) == 400
    assert max(length for _offset, length in spans) <= 16
    kept = b"".join(cut(content[offset : offset + length]) for offset, length, cut in action.parts(len(content), 400))
    lines = kept.splitlines()
    assert lines[0] == b"line 000" and lines[-1] == b"line 099"
    assert set(lines) <= set(content.splitlines())
    assert len(kept) + 18 > 390 and len(lines) > 40
