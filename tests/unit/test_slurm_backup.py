# SPDX-License-Identifier: Apache-2.0
"""The archive of a controller: what is in it, what is refused, and how it is put back."""

import gzip
import io
import json
import os
import re
import tarfile
from pathlib import Path

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.slurm import backup as logic

FACTS = {
    "taken": 1_795_000_000,
    "slurm": "24.11.5",
    "cluster": "blue",
    "clusters": ["blue"],
    "database_schema": 16,
    "munge_key": "/state/munge.key",
}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    parts = {}
    for name in logic.PARTS:
        (tmp_path / name).write_bytes(gzip.compress(name.encode() * 1000))
        parts[name] = str(tmp_path / name)
    path = tmp_path / "slurm.tar"
    logic.write(str(path), parts, FACTS)
    return path


def changed(path: Path, change, names=None) -> str:
    """The archive with its members (name, content) changed by a function, or left out where it returns None; names: {old: new}."""
    other = path.with_name("changed.tar")
    with tarfile.open(path) as tar, tarfile.open(other, "w") as made:
        for member in tar:
            content = change(member.name, tar.extractfile(member).read())
            if content is not None:
                member.size, member.name = len(content), (names or {}).get(member.name, member.name)
                made.addfile(member, io.BytesIO(content))
    return str(other)


def test_an_archive_is_whole_and_private(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    manifest = logic.read(str(archive), str(tmp_path / "out"))
    assert archive.stat().st_mode & 0o777 == 0o600
    assert sorted(os.listdir(tmp_path / "out")) == sorted(logic.PARTS)
    assert (tmp_path / "out" / logic.STATE).read_bytes() == (tmp_path / logic.STATE).read_bytes()
    assert {key: manifest[key] for key in FACTS} == FACTS
    assert not archive.with_name("slurm.tar.part").exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda name, content: content[:-1] + b"x" if name == logic.STATE else content, "the sha256 of state.tar.gz is not the one"),
        (lambda name, content: None if name == logic.DATABASE else content, "not whole, database.sql.gz is missing"),
        (lambda name, content: None if name == "manifest.json" else content, "is no backup of Slurm by Muster"),
        (lambda name, content: content[:40] if name == "manifest.json" else content, "is damaged .JSONDecodeError"),
        (lambda name, content: b"[]" if name == "manifest.json" else content, "is damaged"),
        (lambda name, content: content.replace(b"backup/1", b"backup/9"), "is of schema muster.slurm_backup/9"),
        (
            lambda name, content: (
                json.dumps({key: value for key, value in json.loads(content).items() if key != "taken"}).encode()
                if name == "manifest.json"
                else content
            ),
            "is damaged .KeyError: 'taken'",
        ),
    ],
)
def test_a_damaged_archive_is_refused(archive: Path, change, sentence: str) -> None:
    with pytest.raises(logic.BackupError, match=sentence):
        logic.read(changed(archive, change))


@pytest.mark.parametrize("part", [0, 0.3, 0.9])
def test_a_cut_archive_is_refused(archive: Path, part: float) -> None:
    whole = archive.read_bytes().rstrip(b"\0")
    archive.write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises(logic.BackupError, match=r"damaged|not whole"):
        logic.read(str(archive))


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(logic.BackupError, match="cannot be read: No such file"):
        logic.read(str(tmp_path / "none.tar"))


def test_a_folder_comes_back_with_links_and_modes(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "hash.1" / "job.11").mkdir(parents=True)
    (source / logic.REPLACED).mkdir()
    (source / logic.REPLACED / "old").write_text("old")
    (source / "hash.1" / "job.11" / "script").write_text("#!/bin/sh\n")
    (source / "job_state").write_bytes(b"\0state")
    (source / "job_state").chmod(0o600)
    (source / "link").symlink_to("job_state")
    target.mkdir()
    (target / "job_state").write_text("mine")

    def identify(user, group):
        return os.getuid(), os.getgid()

    assert logic.pack(str(source), str(tmp_path / "state.tar.gz")) == [
        "hash.1",
        "hash.1/job.11",
        "hash.1/job.11/script",
        "job_state",
        "link",
    ]
    logic.unpack(str(tmp_path / "state.tar.gz"), str(target), identify, overwrite=False)
    assert (target / "job_state").read_text() == "mine"
    logic.unpack(str(tmp_path / "state.tar.gz"), str(target), identify)
    assert (target / "job_state").read_bytes() == b"\0state"
    assert (target / "job_state").stat().st_mode & 0o777 == 0o600
    assert (target / "link").readlink() == Path("job_state")
    assert (target / "hash.1" / "job.11" / "script").read_text() == "#!/bin/sh\n"
    assert not (target / logic.REPLACED).exists()


@pytest.mark.parametrize("name", ["../out", "/etc/passwd", "a/../../b"])
def test_a_name_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo(name))
    with pytest.raises(logic.BackupError, match="not made by Muster"):
        logic.unpack(str(tmp_path / "bad.tar.gz"), str(tmp_path), lambda user, group: (0, 0))


def packed(path: Path, *members: tuple[str, str]) -> str:
    """A tar.gz of links (name, target) and, without a target, files; its path."""
    with tarfile.open(path, "w:gz") as tar:
        for name, link in members:
            member = tarfile.TarInfo(name)
            if link:
                member.type, member.linkname = tarfile.SYMTYPE, link
            tar.addfile(member)
    return str(path)


def test_no_file_is_written_through_a_link(tmp_path: Path) -> None:
    def identify(user, group):
        return os.getuid(), os.getgid()

    (tmp_path / "outside").mkdir()
    inside = tmp_path / "inside"
    inside.mkdir()
    planted = packed(tmp_path / "planted.tar.gz", ("first", ""), ("way", str(tmp_path / "outside")), ("way/evil", ""))
    with pytest.raises(logic.BackupError, match="holds way/evil, which is no file of that folder"):
        logic.unpack(planted, str(inside), identify)
    (inside / "jobs").symlink_to(tmp_path / "outside")
    with pytest.raises(logic.BackupError, match="inside/jobs is a link on this host and a folder in the backup"):
        logic.unpack(packed(tmp_path / "own.tar.gz", ("first", ""), ("jobs/evil", "")), str(inside), identify)
    assert list((tmp_path / "outside").iterdir()) == []
    # Nothing of a refused archive is written.
    assert [each.name for each in inside.iterdir()] == ["jobs"]


def test_a_manifest_cannot_name_a_part_elsewhere(archive: Path, tmp_path: Path) -> None:
    def renamed(name: str, content: bytes) -> bytes:
        return content.replace(b'"config.tar.gz"', b'"../outside"') if name == "manifest.json" else content

    bad = changed(archive, renamed, {logic.CONFIG: "../outside"})
    with pytest.raises(logic.BackupError, match=r"holds \.\./outside, which its manifest does not name"):
        logic.read(bad, str(tmp_path / "parts"))
    assert not (tmp_path / "outside").exists()


def test_what_was_there_is_put_aside_once(tmp_path: Path) -> None:
    (tmp_path / "job_state").write_text("old")
    logic.put_aside(str(tmp_path))
    (tmp_path / "late").write_text("old")
    logic.put_aside(str(tmp_path))  # continues where an interrupted run stopped
    (tmp_path / "job_state").write_text("half of the new")
    logic.empty(str(tmp_path))
    assert os.listdir(tmp_path) == [logic.REPLACED]
    assert (tmp_path / logic.REPLACED / "job_state").read_text() == "old"
    logic.forget_aside(str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_the_pause_ends_with_the_first_table(tmp_path: Path) -> None:
    sizes = []

    class Source(io.BytesIO):
        def read1(self, size=-1):
            return super().read(7)

    sql = b"-- header\nCREATE TABLE a;\n" + b"INSERT;\n" * 100
    source = Source(sql)
    assert logic.compress(source, str(tmp_path / "a.gz"), lambda: sizes.append(source.tell()))
    assert sizes == [28]
    target = io.BytesIO()
    logic.decompress(str(tmp_path / "a.gz"), target)
    assert target.getvalue() == sql
    (tmp_path / "a.gz").write_bytes((tmp_path / "a.gz").read_bytes()[:-9])
    with pytest.raises(logic.BackupError, match="dump in the backup is damaged"):
        logic.decompress(str(tmp_path / "a.gz"), io.BytesIO())


def test_the_password_goes_into_a_file() -> None:
    assert logic.client_options(logic.conf_values("StorageHost=localhost\nStorageUser=slurm\n# StoragePass=no\n")) == ""
    dbd = logic.conf_values(
        'StorageHost=db.site\nStoragePort=3307\nStorageUser=slurm\nStoragePass=a"b#c\nStorageParameters=SSL_CA=/etc/ca.pem'
    )
    assert logic.client_options(dbd) == (
        '[client]\nhost=db.site\nport="3307"\nuser="slurm"\npassword="a\\"b"\nssl-ca=/etc/ca.pem\n'.replace('a\\"b', 'a\\"b')
    )


def refusal(**changes) -> list[str]:
    known = {"cluster": "blue", "installed": "24.11.5", "live": {}, "force": False, **changes}
    return logic.objections({**FACTS, **known.pop("manifest", {})}, **known)


LIVE = {"schema": 16, "clusters": ["blue"], "newest": FACTS["taken"] - 10}


def test_what_fits_is_not_refused() -> None:
    assert refusal() == refusal(installed="") == refusal(live=LIVE) == []
    assert refusal(installed="", manifest={"slurm": "22.05.8"}) == []
    assert refusal(manifest={"slurm": "23.02.7"}) == refusal(manifest={"slurm": "24.11.9"}) == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"cluster": "red"}, "is of cluster blue and this fleet is red"),
        ({"manifest": {"slurm": "25.05.1"}}, "Slurm 25.05.1 and 24.11.5 is installed.*install 25.05 or newer first"),
        (
            {"manifest": {"slurm": "22.05.8"}},
            "by Slurm 22.05.8 and 24.11.5 is installed, which reads only 24.11, 24.05, 23.11 and 23.02; install 22.05 for the restore",
        ),
        ({"live": {**LIVE, "schema": 17}}, "has schema 17 and the backup the older 16"),
        (
            {"live": {**LIVE, "newest": FACTS["taken"] + 1}},
            "holds jobs up to .* UTC, the backup is of .* UTC; set muster_restore_force=true",
        ),
        ({"live": {**LIVE, "clusters": ["blue", "green"]}}, "serves cluster green as well"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict, sentence: str) -> None:
    [said] = refusal(**changes)
    assert re.search(sentence, said)
    assert bool(refusal(**{**changes, "force": True})) == ("live" not in changes)
