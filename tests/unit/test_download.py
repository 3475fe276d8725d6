# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The controller's cache of downloads, and the action plugin that brings a file of it to a node."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import shutil
import sys
import threading
from pathlib import Path

import pytest
from download_server import ARCHIVE, SHA256
from playbook import run_playbook

from ansible_collections.muster.fleet.plugins.plugin_utils import downloads
from ansible_collections.muster.fleet.plugins.plugin_utils.downloads import DownloadError


def cached(source: dict, cache: Path, wait: float = 1.0) -> Path:
    return downloads.cached(source, cache, cache / "lock.json", wait)


@pytest.fixture
def source(server):
    """Makes a source as stack_source gives it; the server's address stands for HOST."""

    def make(**other: object) -> dict:
        proof = {} if "signature" in other else {"sha256": SHA256}
        text = json.dumps({"kind": "url", "url": "HOST/a/x-1.0.tar.gz", **proof, **other})
        return json.loads(text.replace("HOST", f"http://127.0.0.1:{server.server_address[1]}"))

    return make


def test_what_many_want_at_once_is_fetched_once(server, source, tmp_path: Path) -> None:
    threads = [threading.Thread(target=cached, args=(source(), tmp_path)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cached(source(), tmp_path).read_bytes() == ARCHIVE
    assert server.asked["/a/x-1.0.tar.gz"] == 1


def test_the_same_sum_is_the_same_file_wherever_it_came_from(server, source, tmp_path: Path) -> None:
    server.files["/b/x-1.0.tar.gz"] = ARCHIVE
    cached(source(), tmp_path)
    cached(source(url="HOST/b/x-1.0.tar.gz"), tmp_path)
    assert server.asked["/b/x-1.0.tar.gz"] == 0


def test_what_was_damaged_in_the_cache_is_fetched_again(server, source, tmp_path: Path) -> None:
    cached(source(), tmp_path).write_bytes(b"damaged")
    assert cached(source(), tmp_path).read_bytes() == ARCHIVE


@pytest.mark.parametrize(
    "fault",
    [
        ([], {"sha256": "0" * 64}, f"has the sha256 {SHA256} and the stack says {'0' * 64}; the file was removed."),
        ([404], {}, "answers 404 Not Found; correct its version or address in the stack, or fill the mirror."),
        ([503] * 4, {}, "could not be fetched in 4 tries (503 Service Unavailable); try again, it goes on where it stopped."),
        (["cut"] * 4, {}, "could not be fetched in 4 tries (the connection ended after 100 of "),
    ],
    ids=["wrong sum", "404", "503", "cut"],
)
def test_a_fault_is_one_sentence_and_leaves_nothing_that_would_be_found(server, source, tmp_path: Path, fault) -> None:
    trouble, other, said = fault
    server.trouble["/a/x-1.0.tar.gz"] = list(trouble)
    with pytest.raises(DownloadError) as error:
        cached(source(**other), tmp_path, wait=0)
    assert said in str(error.value) and "\n" not in str(error.value)
    assert [path for path in (tmp_path / "downloads").iterdir() if path.name.endswith("x-1.0.tar.gz")] == []


def test_a_mirror_that_stumbles_is_given_longer_and_longer_pauses(server, source, tmp_path: Path, monkeypatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(downloads.time, "sleep", pauses.append)
    server.trouble["/a/x-1.0.tar.gz"] = [503, "cut", 429]
    assert cached(source(), tmp_path).read_bytes() == ARCHIVE
    assert pauses == [1, 2, 4]
    server.trouble["/b/y.tar.gz"] = [503] * 9
    with pytest.raises(DownloadError):
        cached(source(url="HOST/b/y.tar.gz"), tmp_path)
    assert pauses == [1, 2, 4] * 2, "nobody waits after the last try"


def test_after_a_cut_the_next_run_goes_on_there(server, source, tmp_path: Path) -> None:
    server.trouble["/a/x-1.0.tar.gz"] = ["cut"] * 4
    with pytest.raises(DownloadError):
        cached(source(), tmp_path, wait=0)
    assert cached(source(), tmp_path).read_bytes() == ARCHIVE
    assert server.ranges == [0, 100, 200, 300, 400]


def test_space_is_asked_for_first(server, source, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(downloads.shutil, "disk_usage", lambda _path: shutil._ntuple_diskusage(10**9, 10**9, 5000))
    with pytest.raises(DownloadError, match=r"downloads has no space for http://.*x-1.0.tar.gz \(0 MiB are free of 0\); free some\."):
        cached(source(), tmp_path)
    assert not list((tmp_path / "downloads").glob("*.part"))


def test_a_disk_that_fills_up_keeps_no_part(server, source, tmp_path: Path) -> None:
    path, url = downloads.cached_path(source(), tmp_path)
    path.parent.mkdir()
    part = path.with_name(path.name + ".part")
    part.symlink_to("/dev/full")
    with pytest.raises(DownloadError) as error:
        cached(source(), tmp_path)
    assert str(error.value) == f"{tmp_path}/downloads has no space for {url} (No space left on device); free some."
    assert not part.is_symlink() and server.asked["/a/x-1.0.tar.gz"] == 1


@pytest.mark.parametrize("what", ["mkdir", "open"])
def test_a_disk_without_room_for_a_folder_or_a_lock_is_a_sentence(source, tmp_path: Path, monkeypatch, *, what: str) -> None:
    def full(path: Path, *_words: object, **_more: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(downloads.Path, what, full)
    with pytest.raises(DownloadError, match=r" has no space for http://.*x-1\.0\.tar\.gz \(No space left on device\); free some\.$"):
        cached(source(), tmp_path)


def test_a_cache_that_cannot_be_a_folder_is_a_sentence_of_the_task(source, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    task = {"muster.fleet.download": {"source": source()}}
    play = {"hosts": "localhost", "gather_facts": False, "vars": {"muster_cache_dir": str(tmp_path / "cache")}, "tasks": [task]}
    (tmp_path / "play.yml").write_text(json.dumps([play]))
    done = run_playbook(tmp_path, "-i", "localhost,", "-c", "local", tmp_path / "play.yml")
    said = f"{tmp_path}/cache cannot take {source()['url']} (Not a directory); name a folder that you may write to."
    assert said in done.stdout + done.stderr and "Traceback" not in done.stdout + done.stderr


def test_a_folder_without_the_file_is_told_at_once(tmp_path: Path) -> None:
    source = {"kind": "url", "url": f"file://{tmp_path}/mirror/example.org/x.tar.gz", "sha256": SHA256}
    with pytest.raises(DownloadError, match=r"/mirror/example\.org/x\.tar\.gz cannot be read; fill the folder by make mirror\."):
        cached(source, tmp_path / "cache", wait=100)


def test_half_an_archive_in_a_mirror_folder_is_refused_until_the_folder_has_it_whole(tmp_path: Path) -> None:
    kept = tmp_path / "mirror" / "example.org" / "x.tar.gz"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(ARCHIVE[:200])
    source = {"kind": "url", "url": f"file://{kept}", "sha256": SHA256}
    with pytest.raises(DownloadError) as error:
        cached(source, tmp_path / "cache", wait=0)
    half = hashlib.sha256(ARCHIVE[:200]).hexdigest()
    remedy = "remove it there and fill the folder by make mirror"
    assert str(error.value) == f"file://{kept} has the sha256 {half} and the stack says {SHA256}; {remedy}."
    assert kept.read_bytes() == ARCHIVE[:200], "the folder is its owner's: the copy went"
    assert not list((tmp_path / "cache" / "downloads").glob("*x.tar.gz")), "the copy would be taken for good"
    kept.write_bytes(ARCHIVE)
    assert cached(source, tmp_path / "cache").read_bytes() == ARCHIVE


def test_a_signature_is_looked_at_every_time(server, source, signed, tmp_path: Path) -> None:
    server.files.update({"/key": signed["key"], "/a/x-1.0.tar.gz.sig": signed["signature"]})
    signature = {"key": "HOST/key", "fingerprint": signed["fingerprint"], "url": "HOST/a/x-1.0.tar.gz.sig"}
    path = cached(source(signature=signature), tmp_path)
    assert path.read_bytes() == ARCHIVE
    path.write_bytes(ARCHIVE[:-1])
    with pytest.raises(DownloadError, match=f"has no good signature of the key {signed['fingerprint']}; do not use it."):
        cached(source(signature=signature), tmp_path)
    assert cached(source(signature=signature), tmp_path).read_bytes() == ARCHIVE, "it was not removed"
    with pytest.raises(DownloadError, match=f"has the fingerprint {signed['fingerprint']} and the stack says {'A' * 40}."):
        cached(source(signature={**signature, "fingerprint": "A" * 40}), tmp_path)


def test_a_signature_that_no_longer_counts_is_refused(server, source, stale, tmp_path: Path) -> None:
    """gpg calls each of them VALIDSIG."""
    server.files.update({"/key": stale["key"], "/a/x-1.0.tar.gz.sig": stale["signature"]})
    signature = {"key": "HOST/key", "fingerprint": stale["fingerprint"], "url": "HOST/a/x-1.0.tar.gz.sig"}
    with pytest.raises(DownloadError) as error:
        cached(source(signature=signature), tmp_path)
    url = source()["url"]
    remedy = "do not use it, and name a newer version or the maker's new key in the stack"
    assert str(error.value) == f"{url} is signed by the key {stale['fingerprint']}, {stale['said']}; {remedy}."
    assert not [path for path in (tmp_path / "downloads").iterdir() if not path.name.endswith(".lock")], (
        "a renewed key would not be fetched"
    )


def test_a_repository_whose_key_no_longer_counts_is_refused(server, source, stale, tmp_path: Path) -> None:
    server.files["/key"] = stale["key"]
    wanted = source(kind="repository", repository="HOST/debian", signature={"key": "HOST/key", "fingerprint": stale["fingerprint"]})
    if stale["key_is_good"]:
        assert cached(wanted, tmp_path).exists()
        return
    with pytest.raises(DownloadError, match=f"debian is signed by the key {stale['fingerprint']}, {stale['said']}; do not use it"):
        cached(wanted, tmp_path)


def test_of_a_repository_the_one_key_is_taken(server, source, signed, tmp_path: Path) -> None:
    server.files["/key"] = signed["key"]
    repository = {"kind": "repository", "repository": "HOST/debian", "sha256": ""}
    path = cached(source(**repository, signature={"key": "HOST/key", "fingerprint": signed["fingerprint"]}), tmp_path)
    assert path.read_text().startswith("-----BEGIN PGP PUBLIC KEY BLOCK-----")
    for _again in range(2):
        with pytest.raises(DownloadError, match=f"has the fingerprint {signed['fingerprint']} and the stack says {'B' * 40}."):
            cached(source(**repository, signature={"key": "HOST/key", "fingerprint": "B" * 40}), tmp_path)


ADDRESS = "https://vendor.example/key.asc"


@pytest.fixture
def by_https(tmp_path: Path):
    """A repository for whose key only HTTPS vouches, fetched from a mirror folder; key(...) puts other bytes there."""
    mirror = tmp_path / "mirror" / "key.asc"
    mirror.parent.mkdir()
    signature = {"key": f"file://{mirror}", "published_at": ADDRESS, "https": "nobody says"}

    class Repository:
        def __init__(self) -> None:
            self.source = {"kind": "repository", "repository": "https://vendor.example/debian", "sha256": "", "signature": signature}
            self.lock_file = tmp_path / "site" / "lock.json"

        def key(self, content: bytes) -> None:
            mirror.write_bytes(content)

        def fetch(self, cache: str = "cache") -> Path:
            return downloads.cached(self.source, tmp_path / cache, self.lock_file, wait=0)

        def pins(self) -> dict:
            return json.loads(self.lock_file.read_text())["keys"]

    return Repository()


def test_the_first_fetch_pins_the_key_and_another_one_is_refused(signed, stale, by_https) -> None:
    by_https.key(signed["key"])
    assert by_https.fetch().read_text().startswith("-----BEGIN PGP PUBLIC KEY BLOCK-----")
    pins = by_https.pins()
    assert pins[ADDRESS]["fingerprint"] == signed["fingerprint"] and list(pins[ADDRESS]) == ["fingerprint", "since"]

    by_https.key(stale["key"])
    assert by_https.fetch().exists(), "a key that is in the cache is not fetched again within a day"
    for _again in range(2):
        with pytest.raises(DownloadError) as error:
            by_https.fetch("cache of another machine")
        assert str(error.value) == (
            f"{ADDRESS} now gives the key {stale['fingerprint']}, and {by_https.lock_file} pins {signed['fingerprint']} since "
            f"{pins[ADDRESS]['since']}; ask its owner whether it changed, and if it did, remove its entry there."
        )
    assert by_https.pins() == pins


def test_a_changed_key_is_noticed_after_a_day(signed, stale, by_https) -> None:
    by_https.key(signed["key"])
    raw = by_https.fetch().with_suffix("")  # beside the one that apt reads
    by_https.key(stale["key"])
    os.utime(raw, (0, 0))
    with pytest.raises(DownloadError, match="now gives the key"):
        by_https.fetch()


def test_a_key_that_cannot_be_fetched_again_stays(signed, by_https) -> None:
    by_https.key(signed["key"])
    raw = by_https.fetch().with_suffix("")
    os.utime(raw, (0, 0))
    Path(by_https.source["signature"]["key"].removeprefix("file://")).unlink()
    assert by_https.fetch().exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON (Expecting property name"),
        ('{"schema": "muster.stack/1"}', "is not of schema muster.pins/1; name another file in muster_lock_file."),
    ],
)
def test_a_lock_file_that_cannot_be_read_pins_nothing(signed, by_https, text: str, said: str) -> None:
    by_https.key(signed["key"])
    by_https.lock_file.parent.mkdir()
    by_https.lock_file.write_text(text)
    with pytest.raises(DownloadError, match=re.escape(said)):
        by_https.fetch()
    assert by_https.lock_file.read_text() == text


def test_several_keys_in_one_file_are_not_pinned(signed, stale, by_https) -> None:
    by_https.key(signed["key"] + stale["key"])
    with pytest.raises(DownloadError, match=f"^{ADDRESS} has 2 keys and should have one"):
        by_https.fetch()


def test_a_mirror_without_https_vouches_for_nothing(server, signed, by_https) -> None:
    server.files["/key"] = signed["key"]
    by_https.source["signature"]["key"] = f"http://127.0.0.1:{server.server_address[1]}/key"
    with pytest.raises(
        DownloadError, match=r"^Only HTTPS vouches for the key .*; name a mirror with https:// or a folder in muster_mirror\.$"
    ):
        by_https.fetch()
    assert not by_https.lock_file.exists()


def test_https_that_leads_to_http_is_refused(monkeypatch, tmp_path: Path) -> None:
    class Answer(io.BytesIO):
        def geturl(self) -> str:
            return "http://elsewhere.example/x"

    class Opener:
        def open(self, request, timeout):
            return Answer()

    monkeypatch.setattr(downloads.urllib.request, "build_opener", Opener)
    with pytest.raises(DownloadError, match=r"^https://vendor.example/x redirects to http://elsewhere.example/x, which is not HTTPS"):
        downloads.fetch("https://vendor.example/x", tmp_path / "x", wait=0)


def test_the_action_brings_it_to_the_node(source, tmp_path: Path) -> None:
    """A new file, the same again, a dry run, and a source that is no file."""
    wanted = tmp_path / "node" / "x.tar.gz"
    wanted.parent.mkdir()
    other = {**source(), "sha256": hashlib.sha256(b"other").hexdigest()}
    calls = [
        {"source": source(), "dest": str(wanted), "mode": "0600"},
        {"source": source(), "dest": str(wanted), "mode": "0600"},
        {"source": other, "dest": str(wanted)},
        {"source": other, "dest": str(wanted)},
        {"source": source()},
        {"source": {"kind": "distro", "distro": ["x"]}},
    ]
    tasks = [{"muster.fleet.download": call, "ignore_errors": True, "register": f"r{number}"} for number, call in enumerate(calls)]
    tasks[2]["check_mode"] = True
    results = "{{ [" + ", ".join(f"r{number}" for number in range(len(calls))) + "] | to_json }}"
    tasks.append({"ansible.builtin.copy": {"content": results, "dest": str(tmp_path / "results")}})
    python = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "muster_cache_dir": str(tmp_path / "cache")}
    (tmp_path / "play.yml").write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "vars": python, "tasks": tasks}]))
    done = run_playbook(tmp_path, "-i", "localhost,", tmp_path / "play.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    new, again, dry, wrong, here, no_file = json.loads((tmp_path / "results").read_text())
    assert (new["changed"], again["changed"], dry["changed"], here["changed"]) == (True, False, True, False)
    assert wanted.read_bytes() == ARCHIVE and wanted.stat().st_mode & 0o777 == 0o600
    assert here["file"] == new["file"] and Path(here["file"]).read_bytes() == ARCHIVE
    assert wrong["failed"] and f"and the stack says {other['sha256']}; the file was removed." in wrong["msg"]
    assert no_file["msg"] == "A source of kind distro has no file; name a url or repository."
