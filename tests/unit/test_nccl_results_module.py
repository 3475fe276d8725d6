# Copyright: the Muster developers
# SPDX-License-Identifier: Apache-2.0
"""The module nccl_results as Ansible calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.muster.fleet.plugins.modules import nccl_results

FIXTURES = Path(__file__).parents[1] / "fixtures" / "nccl"


def run(capsys: pytest.CaptureFixture[str], **options: object) -> dict:
    with patch_module_args(options), pytest.raises(SystemExit):
        nccl_results.main()
    return json.loads(capsys.readouterr().out)


def test_a_file_that_passes(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, path=str(FIXTURES / "constructed-2.19.txt"), expect_ranks=16, expect_hosts=["compute-1", "compute-2"])
    assert (result["verdict"], result["changed"], result["schema"]) == ("passed", False, "muster.nccl_results/1")
    assert result["tables"][0]["ranks_proven"] == 16


def test_a_failed_verdict_fails_the_task_and_keeps_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, path=str(FIXTURES / "p5-2-nodes.txt"), collective="all_reduce", expect_ranks=16, min_bytes=8, max_bytes=16)
    assert result["failed"]
    assert result["msg"].startswith("all_reduce: the output is incomplete")
    assert len(result["tables"][0]["rows"]) == 64


@pytest.mark.parametrize(("options", "says"), [({"content": ""}, "is empty"), ({"path": "/nonexistent/output.txt"}, "cannot be read")])
def test_nothing_to_read_is_one_sentence(capsys: pytest.CaptureFixture[str], options: dict, says: str) -> None:
    result = run(capsys, **options)
    assert result["failed"]
    assert says in result["msg"]
