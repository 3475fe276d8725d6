# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The module that reads a job document from a file; what may stand in one is tested with module_utils/jobs/document.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.jobs import document as job
from ansible_collections.muster.fleet.plugins.modules import job_document as module

HELLO = "name: hello\ncommand: [hostname]\nnodes: 2\n"


@pytest.mark.parametrize("check_mode", [False, True])
def test_a_document_gets_its_defaults_and_its_identity(call, tmp_path: Path, check_mode: bool) -> None:
    path = tmp_path / "hello.yml"
    path.write_text(HELLO)
    result = call(module, path=str(path), check_mode=check_mode)
    assert (result["changed"], result["document"]["nodes"], result["document"]["procs_per_node"]) == (False, 2, 1)
    assert result["identity"] == job.identity(result["document"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read (No such file or directory): name a file."),
        ("name: [hello\n", "is not YAML: "),
        (b"name: \xff\n", "is not YAML: "),
        (HELLO + "gpus: 8\n", "gpus"),
        ("- hello\n", "hello.yml: "),
    ],
)
def test_what_is_no_document_is_refused_by_one_sentence(call, tmp_path: Path, text: str | bytes | None, said: str) -> None:
    path = tmp_path / "hello.yml"
    if text is not None:
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    result = call(module, path=str(path))
    assert result["failed"]
    assert str(path) in result["msg"]
    assert said in result["msg"]
    assert "\n" not in result["msg"]


HOME = {"venv": "/opt/venv", "env": {"PYTHONPATH": "/fsx/trainer", "A": "home"}}


def test_a_document_without_an_environment_gets_that_of_the_trainer(call, tmp_path: Path) -> None:
    path = tmp_path / "hello.yml"
    path.write_text(HELLO + "env: {A: mine}\n")
    document = call(module, path=str(path), home=HOME)["document"]
    assert (document["venv"], document["env"]) == ("/opt/venv", {"PYTHONPATH": "/fsx/trainer", "A": "mine"})
    pods = {"image": "trainer:1", "mounts": ["/a:/b:ro"]}
    document = call(module, path=str(path), home=pods, launcher="jobset")["document"]
    assert (document["image"], document["venv"], document["mounts"], document["env"]) == ("trainer:1", "", ["/a:/b:ro"], {"A": "mine"})
    path.write_text(HELLO + "mounts: [/c:/d]\n")
    assert call(module, path=str(path), home=pods, launcher="jobset")["document"]["mounts"] == ["/c:/d"]


@pytest.mark.parametrize("own", ["image: mine:1\n", "venv: /mine\n"])
def test_a_document_with_an_environment_keeps_it(call, tmp_path: Path, own: str) -> None:
    path = tmp_path / "hello.yml"
    path.write_text(HELLO + own)
    assert call(module, path=str(path), home=HOME)["document"] == call(module, path=str(path))["document"]


def test_variables_that_are_no_mapping_are_refused_all_the_same(call, tmp_path: Path) -> None:
    path = tmp_path / "hello.yml"
    path.write_text(HELLO + "env: [A]\n")
    assert "env must be a mapping" in call(module, path=str(path), home=HOME)["msg"]
