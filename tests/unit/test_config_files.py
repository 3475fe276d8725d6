# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The module config_files: several files in one call, all or nothing, never half and never readable on the way."""

from __future__ import annotations

import getpass
import grp
import os
import subprocess
from pathlib import Path

import pytest
from ansible.module_utils import basic

from ansible_collections.muster.fleet.plugins.modules import config_files as module


@pytest.fixture
def write(call, tmp_path: Path):
    """Write files given as name=content or name={options}; the module's result."""

    def run(check_mode: bool = False, show_diff: bool = True, together: list | None = None, **files) -> dict:
        mine = {"owner": getpass.getuser(), "group": grp.getgrgid(os.getgid()).gr_name}
        given = {name: spec if isinstance(spec, dict) else {"content": spec} for name, spec in files.items()}
        specs = [{"dest": str(tmp_path / name), **mine, **spec} for name, spec in given.items()]
        return call(module, check_mode=check_mode, files=specs, show_diff=show_diff, validate_together=together or [])

    return run


def names(result: dict) -> list[str]:
    return [Path(path).name for path in result["changed_files"]]


def test_only_what_differs_is_written(write, tmp_path):
    assert names(write(one="1\n", two="2\n")) == ["one", "two"]
    kept = (tmp_path / "one").stat()
    result = write(one="1\n", two="3\n")
    assert (result["changed"], names(result)) == (True, ["two"])
    assert (tmp_path / "two").read_text() == "3\n"
    assert ((tmp_path / "one").stat().st_ino, (tmp_path / "one").stat().st_mtime_ns) == (kept.st_ino, kept.st_mtime_ns)
    assert not write(one="1\n", two="3\n")["changed"]


def test_mode_alone_is_a_change(write, tmp_path):
    write(key="secret")
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o644
    assert names(write(key={"content": "secret", "mode": "0400"})) == ["key"]
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o400


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_owner_alone_is_a_change(write, tmp_path):
    write(key="secret")
    assert names(write(key={"content": "secret", "owner": "nobody", "group": "nogroup"})) == ["key"]
    assert ((tmp_path / "key").owner(), (tmp_path / "key").group()) == ("nobody", "nogroup")


def test_missing_folders_are_made(write, tmp_path):
    write(**{"a/b/c.conf": "x"})
    assert (tmp_path / "a/b/c.conf").read_text() == "x"
    assert (tmp_path / "a/b").stat().st_mode & 0o777 == 0o755


def test_one_refused_file_stops_all(write, tmp_path):
    (tmp_path / "second").write_text("old")
    refuse = ["sh", "-c", "grep -q good $0 || { echo line 1 is bad >&2; exit 1; }", "%s"]
    result = write(first="1", second={"content": "bad", "validate": refuse}, third="3")
    assert result["failed"]
    assert result["msg"] == f"The new {tmp_path}/second was refused by sh, nothing was written: line 1 is bad"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["second"]
    assert (tmp_path / "second").read_text() == "old"
    assert names(write(first="1", second={"content": "good", "validate": refuse})) == ["first", "second"]


def test_what_changed_is_brought_into_force_once(write, tmp_path):
    told = tmp_path / "told"
    reload = ["sh", "-c", f"cat {tmp_path}/one {tmp_path}/two >> {told}"]
    files = {"one": {"content": "1\n", "apply": reload}, "two": {"content": "2\n", "apply": reload}, "three": "3\n"}
    write(check_mode=True, **files)
    assert not told.exists()
    write(**files)
    assert told.read_text() == "1\n2\n"
    write(**{**files, "three": "4\n"})
    assert told.read_text() == "1\n2\n"
    write(**{**files, "two": {"content": "5\n", "apply": reload}})
    assert told.read_text() == "1\n2\n1\n5\n"


def test_what_cannot_be_brought_into_force_is_as_it_was(write, tmp_path):
    (tmp_path / "old").write_text("old")
    refuse = ["sh", "-c", "echo no such daemon >&2; exit 1"]
    result = write(old={"content": "x", "apply": refuse}, new={"content": "x", "apply": refuse}, other="x")
    assert result["failed"]
    assert result["msg"] == f"{' '.join(refuse)} failed, so {tmp_path}/old, {tmp_path}/new was restored: no such daemon"
    assert (sorted(path.name for path in tmp_path.iterdir()), (tmp_path / "old").read_text()) == (["old", "other"], "old")


def test_what_must_come_first_sees_the_file_before_it_is_there(write, tmp_path):
    users, seen = tmp_path / "users", tmp_path / "seen"
    first = ["sh", "-c", f'cat "$1" >{seen}; test ! -e {users}', "sh", "%s"]
    assert names(write(users={"content": "u ada 2001\n", "apply": first})) == ["users"]
    assert (seen.read_text(), users.read_text()) == ("u ada 2001\n",) * 2
    seen.unlink()
    assert names(write(users={"content": "u ada 2001\n", "apply": first})) == [] and not seen.exists()
    result = write(other="new", users={"content": "u bob 2002\n", "apply": first})
    assert result["failed"] and result["msg"].startswith(f"sh failed for the new {users}, nothing was written")
    assert not (tmp_path / "other").exists() and users.read_text() == "u ada 2001\n"


def test_what_must_come_first_waits_for_every_check_and_for_no_check_mode(write, tmp_path):
    users = {"content": "u ada 2001\n", "apply": ["sh", "-c", f"touch {tmp_path}/ran", "sh", "%s"]}
    assert write(users=users, other={"content": "x", "validate": ["false"]})["failed"]
    assert write(check_mode=True, users=users)["changed"]
    assert list(tmp_path.iterdir()) == []


def test_validation_sees_a_closed_file_and_runs_only_on_change(write, tmp_path):
    look = ["sh", "-c", f"stat -c %a $0 >>{tmp_path}/seen", "%s"]
    write(key={"content": "x", "validate": look})
    write(key={"content": "x", "validate": look})
    assert (tmp_path / "seen").read_text() == "600\n"


def test_validation_in_check_mode(write, tmp_path):
    assert write(check_mode=True, bad={"content": "x", "validate": ["false", "%s"]})["failed"]
    assert list(tmp_path.iterdir()) == []


def folder_check(tmp_path: Path, script: str) -> list:
    return [{"folder": str(tmp_path / "etc"), "argv": ["sh", "-c", script, "%s"]}]


@pytest.mark.parametrize("check_mode", [True, False])
def test_a_folder_is_judged_as_it_will_be(write, tmp_path, check_mode):
    """The check sees a closed copy with the new and the old files, but no file of another folder. What it writes is thrown away."""
    write(**{"etc/old.conf": "old", "etc/gone.conf": "x", "etc/sub/a.conf": {"content": "a", "mode": "0600"}})
    os.mkfifo(tmp_path / "etc/pipe")
    look = f"cd $0 && grep -r . . | sort >{tmp_path}/seen; stat -c %a sub/a.conf new.conf .. >>{tmp_path}/seen; echo spoilt >old.conf"
    new = {"etc/new.conf": {"content": "new", "mode": "0640"}, "etc/gone.conf": {"state": "absent"}, "beside": "b"}
    assert write(check_mode=check_mode, together=folder_check(tmp_path, look), **new)["changed"]
    seen = (tmp_path / "seen").read_text().split()
    assert seen == ["./new.conf:new", "./old.conf:old", "./sub/a.conf:a", "600", "640", "700"]
    assert (tmp_path / "etc/old.conf").read_text() == "old"
    assert (tmp_path / "etc/new.conf").exists() is not check_mode


@pytest.mark.parametrize("check_mode", [True, False])
def test_a_refused_folder_stops_all(write, tmp_path, check_mode):
    refuse = folder_check(tmp_path, "test -e $0/two.conf && echo two.conf: no such key >&2; exit 1")
    result = write(check_mode=check_mode, together=refuse, **{"etc/one.conf": "1", "etc/two.conf": "2", "first": "3"})
    assert result["msg"] == "The new one.conf, two.conf were refused, nothing was written: two.conf: no such key"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_judged_only_when_a_file_in_it_changes(write, tmp_path):
    count = folder_check(tmp_path, f"echo >>{tmp_path}/runs")
    write(together=count, **{"etc/one.conf": "1", "etc2/one.conf": "1"})
    write(together=count, **{"etc/one.conf": "1", "etc2/one.conf": "2"})
    assert (tmp_path / "runs").read_text() == "\n"


def test_a_file_is_closed_until_it_has_its_owner_and_never_half_there(write, tmp_path, monkeypatch):
    """At the moment of the replacement the new file has its mode already; a failure there leaves the old one."""
    write(key={"content": "old", "mode": "0600"})
    seen = []

    def replace(source, dest):
        seen.append((Path(source).read_text(), os.stat(source).st_mode & 0o777, Path(dest).read_text()))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", replace)
    result = write(key={"content": "new", "mode": "0600"})
    assert result["failed"]
    assert "No space left on device" in result["msg"]
    assert seen == [("new", 0o600, "old")]
    assert [path.name for path in tmp_path.iterdir()] == ["key"]
    assert (tmp_path / "key").read_text() == "old"


def test_absent(write, tmp_path):
    write(old="x")
    assert names(write(check_mode=True, old={"state": "absent"})) == ["old"]
    assert (tmp_path / "old").exists()
    assert names(write(old={"state": "absent"})) == ["old"]
    assert not (tmp_path / "old").exists()
    assert not write(old={"state": "absent"})["changed"]


@pytest.mark.parametrize("check_mode", [True, False])
def test_a_file_of_somebody_else_is_edited(write, tmp_path, check_mode):
    (tmp_path / "theirs").write_bytes(b"one\ntwo \xff\n")
    (tmp_path / "theirs").chmod(0o640)
    edit = {"edit": ["sed", "s/one/1/", "%s"]}
    assert names(write(check_mode=check_mode, theirs=edit)) == ["theirs"]
    assert (tmp_path / "theirs").read_bytes() == (b"one\ntwo \xff\n" if check_mode else b"1\ntwo \xff\n")
    assert (tmp_path / "theirs").stat().st_mode & 0o777 == 0o640
    assert check_mode or not write(theirs=edit)["changed"]


def test_what_is_not_there_is_not_edited(write, tmp_path):
    (tmp_path / "link").symlink_to("nowhere")
    assert not write(missing={"edit": ["false", "%s"]}, link={"edit": ["false"]})["changed"]


def test_an_edit_that_is_refused_stops_all(write, tmp_path):
    (tmp_path / "theirs").write_text("old")
    result = write(mine="1", theirs={"edit": ["sh", "-c", "cat $0; echo it has no place >&2; exit 1", "%s"]})
    assert result["msg"] == f"The file {tmp_path}/theirs could not be edited, nothing was written: it has no place"
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]
    assert (tmp_path / "theirs").read_text() == "old"


def test_a_link_is_replaced_and_its_target_left(write, tmp_path):
    (tmp_path / "target").write_text("theirs")
    (tmp_path / "link").symlink_to("target")
    write(link="ours")
    assert ((tmp_path / "link").is_symlink(), (tmp_path / "target").read_text()) == (False, "theirs")


def test_a_link_to_nowhere_is_replaced(write, tmp_path):
    (tmp_path / "link").symlink_to("nowhere")
    assert names(write(link="ours")) == ["link"]
    assert (tmp_path / "link").read_text() == "ours"


def test_check_mode_tells_and_writes_nothing(write, tmp_path):
    result = write(check_mode=True, **{"a/one": "1"})
    assert (result["changed"], names(result), result["diff"][0]["after"]) == (True, ["one"], "1")
    assert list(tmp_path.iterdir()) == []


def test_diff_shows_content_and_attributes(write, tmp_path):
    write(one="1\n")
    [diff] = write(one={"content": "2\n", "mode": "0600"})["diff"]
    assert (diff["before"], diff["after"]) == ("1\n", "2\n")
    assert diff["before_header"].endswith("mode 0644)")
    assert diff["after_header"].endswith("mode 0600)")


def test_a_secret_is_in_no_part_of_the_result(write):
    assert "invocation" not in str(write(show_diff=False, key={"content": "hunter2", "mode": "0600"})["diff"])
    result = write(show_diff=False, key={"content": "hunter3", "mode": "0600"})
    result.pop("invocation", None)  # no_log on the task takes that away
    assert "hunter" not in str(result)


def test_an_owner_who_does_not_exist(write, tmp_path):
    result = write(key={"content": "x", "owner": "muster-no-such-user"})
    assert result["msg"] == "The user muster-no-such-user does not exist on this node; install the package that creates it first."
    assert write(check_mode=True, key={"content": "x", "owner": "muster-no-such-user"})["changed"]
    assert list(tmp_path.iterdir()) == []


def test_a_killed_write_leaves_old_or_new(tmp_path):
    """put() is cut by SIGKILL at its last step, as by the loss of power; the old file is whole."""
    dest = tmp_path / "slurm.conf"
    dest.write_text("old")
    cut = (
        "import os, signal, sys\n"
        "from ansible_collections.muster.fleet.plugins.modules import config_files\n"
        "os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "config_files.put(sys.argv[1], (b'new', os.getuid(), os.getgid(), 0o644))\n"
    )
    ended = subprocess.run([os.sys.executable, "-c", cut, str(dest)], check=False)
    assert (ended.returncode, dest.read_text()) == (-9, "old")


def test_a_folder_with_owner_and_mode(write, tmp_path):
    wanted = {"state": "directory", "mode": "0750"}
    result = write(**{"home/ada": wanted})
    assert (names(result), (tmp_path / "home/ada").stat().st_mode & 0o7777) == (["ada"], 0o750)
    (tmp_path / "home/ada/file").touch()
    assert not write(**{"home/ada": wanted})["changed"]
    (tmp_path / "home/ada").chmod(0o777)
    assert names(write(check_mode=True, **{"home/ada": wanted})) == ["ada"]
    assert (tmp_path / "home/ada").stat().st_mode & 0o7777 == 0o777


@pytest.mark.parametrize(
    "there, spec, said", [("file", {"state": "directory"}, "is no folder"), ("folder", {"content": "1\n"}, "is a folder")]
)
def test_what_is_of_another_kind_stays(write, tmp_path, there, spec, said):
    (tmp_path / "x").mkdir() if there == "folder" else (tmp_path / "x").touch()
    result = write(one="1\n", x=spec)
    assert result["failed"] and said in result["msg"]
    assert not (tmp_path / "one").exists()


def test_secrets_are_written_with_the_files_and_shown_nowhere(call, tmp_path):
    mine = {"owner": str(os.getuid()), "group": str(os.getgid())}
    files = [{"dest": str(tmp_path / "conf"), "content": "plain\n", **mine}]
    secrets = [{"dest": str(tmp_path / "key"), "content": "hush-hush\n", **mine}]
    result = call(module, files=files, secrets=secrets)
    assert names(result) == ["conf", "key"]
    assert (tmp_path / "key").read_text() == "hush-hush\n"
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert "hush-hush" not in str(result)
    assert [Path(each["after_header"].split()[0]).name for each in result["diff"]] == ["conf"]
    assert not call(module, files=files, secrets=secrets)["changed"]


def test_no_secret_is_in_the_journal(call, tmp_path, monkeypatch):
    """Ansible writes each call of a module with its arguments to syslog, where lines that were escaped are not recognised."""
    logged = []
    monkeypatch.setattr(basic.AnsibleModule, "log", lambda _self, msg, log_args=None: logged.append(str(msg) + str(log_args)))
    mine = {"owner": str(os.getuid()), "group": str(os.getgid())}
    files = [{"dest": str(tmp_path / "conf"), "content": "plain\n", **mine}]
    secrets = [{"dest": str(tmp_path / "key"), "content": "first-hush\nsecond-hush\n", **mine}]
    result = call(module, files=files, secrets=secrets)
    assert any("plain" in line for line in logged)
    assert not [line for line in logged if "hush" in line]
    assert "hush" not in str(result)
    assert str(tmp_path / "key") in str(result), "its path is no secret"
