# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""kubernetes_file: its pod's command runs here, with a folder in the place of the claim."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.kubernetes import facts
from ansible_collections.muster.fleet.plugins.modules import kubernetes_file


@pytest.fixture
def read(call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """read(name of a file of the claim) -> the answer. read.pods: the pods; read.lost: the characters that the log lost at its begin."""
    (tmp_path / "claim").mkdir()

    def output_of(_objects: Any, pod: dict, _seconds: int, most: int) -> tuple[bool, str]:
        ask.pods.append(pod)
        words = [word.replace("$$(", "$(").replace("/checkpoints", f"{tmp_path}/claim") for word in pod["spec"]["containers"][0]["command"]]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=20, check=False)
        return done.returncode == 0, done.stdout[:most].decode(errors="replace")[ask.lost :]

    def ask(name: str, **options: Any) -> dict:
        where = {"context": "here", "claim": "fsx-claim", "image": "a/b:1"}
        return call(kubernetes_file, src=f"/checkpoints/{name}", dest=str(tmp_path / "copy"), **where, **options)

    ask.pods, ask.lost = [], 0
    monkeypatch.setattr(kubernetes_file, "connection", lambda *_words: None)
    monkeypatch.setattr(kubernetes_file, "output_of", output_of)
    return ask


def test_a_file_is_copied_by_a_pod_without_a_token(read, tmp_path: Path) -> None:
    (tmp_path / "claim/train.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    assert {key: read("train.jsonl")[key] for key in ("changed", "size", "left_out")} == {"changed": True, "size": 24, "left_out": 0}
    assert (tmp_path / "copy").read_text() == '{"step": 1}\n{"step": 2}\n'
    assert read("train.jsonl")["changed"] is False
    assert read.pods[0]["spec"]["automountServiceAccountToken"] is False


def test_of_a_long_file_whole_lines_of_its_begin_and_end_are_copied(read, tmp_path: Path) -> None:
    (tmp_path / "claim/train.jsonl").write_text("".join(f"line {number:02d}\n" for number in range(100)))
    answer = read("train.jsonl", most=80)
    assert (tmp_path / "copy").read_text() == "".join(f"line {number}\n" for number in ("00", "01", *range(93, 100)))
    assert answer["left_out"] == 720


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path, secret: path.symlink_to(secret), "it is a link that leads out of the claim"),
        (lambda path, secret: path.symlink_to("other"), "it is a link"),
        (lambda path, secret: os.mkfifo(path), "it is not a regular file"),
        (lambda path, secret: None, "it does not exist"),
    ],
)
def test_links_and_pipes_are_not_read(read, tmp_path: Path, make: Any, why: str) -> None:
    (tmp_path / "secret").write_text("of the image")
    (tmp_path / "claim/other").write_text("of the claim")
    make(tmp_path / "claim/train.jsonl", tmp_path / "secret")
    answer = read("train.jsonl")
    assert answer["msg"] == f"/checkpoints/train.jsonl of claim fsx-claim cannot be read: {why}."
    assert not (tmp_path / "copy").exists()


def test_a_folder_that_leads_out_of_the_claim_is_not_read(read, tmp_path: Path) -> None:
    (tmp_path / "image").mkdir()
    (tmp_path / "image/secret").write_text("of the image")
    (tmp_path / "claim/folder").symlink_to(tmp_path / "image")
    assert "it is a link that leads out of the claim" in read("folder/secret")["msg"]


def test_a_log_that_lost_its_begin_is_no_copy(read, tmp_path: Path) -> None:
    (tmp_path / "claim/train.jsonl").write_text('{"step": 1}\n')
    read.lost = 3
    sentence = "/checkpoints/train.jsonl of claim fsx-claim was not read whole: the log of its pod lacks its begin; lower most."
    assert read("train.jsonl")["msg"] == sentence
    read.lost = 100
    assert read("train.jsonl")["msg"] == sentence


@pytest.mark.parametrize("answers, text", [(["said"], "said"), (["", "", "said"], "said"), ([""] * 99, "")])
def test_the_log_of_a_probing_pod_is_read_up_to_a_limit_and_again_while_it_is_empty(answers: list[str], text: str) -> None:
    class Api:
        now = 0.0
        gone = asked = None

        def clock(self) -> float:
            return self.now

        def sleep(self, seconds: float) -> None:
            self.now += seconds

        def path(self, _pod: dict) -> str:
            return "/pod"

        def remove(self, _pods: list) -> None:
            self.gone = True

        def apply(self, _pods: list) -> None:
            self.gone = False

        def get(self, _path: str) -> Any:
            return None if self.gone else {"status": {"phase": "Succeeded"}}

        def ask(self, _method: str, path: str, query: dict | None = None) -> tuple[int, str]:
            self.asked = path, query
            return 200, answers.pop(0)

    api = Api()
    assert facts.output_of(api, {}, 10, 77) == (True, text)
    assert api.now <= facts.LOG_SECONDS
    assert api.asked == ("/pod/log", {"limitBytes": 77})
