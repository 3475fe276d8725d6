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


def test_a_type_gives_floors_and_ceiling_and_a_slow_row_a_warning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    warned: list[str] = []
    monkeypatch.setattr(nccl_results.AnsibleModule, "warn", lambda _module, text: warned.append(text))
    path = str(FIXTURES / "constructed-2.19.txt")
    result = run(capsys, path=path, instance_type="p5.48xlarge", expect_hosts=["compute-1", "compute-2"], warn_below=1.01)
    assert (result["verdict"], result["changed"]) == ("passed", False)
    assert (result["tables"][0]["ceiling"], result["tables"][0]["floors"][-1]["floor"]) == (750.0, 438.38)
    assert len(result["remarks"]) == 6 and warned == result["remarks"][:5]
    result = run(capsys, path=path, instance_type="p5.48xlarge", nodes=2, fail_below=1.01)
    assert result["failed"] and "is below the floor of" in result["msg"]


def test_a_type_that_the_catalogue_lacks_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, path=str(FIXTURES / "constructed-2.19.txt"), instance_type="p5.48xlage")
    assert result["failed"]
    assert result["msg"].startswith("The catalogue has no instance type p5.48xlage; the nearest are p5.48xlarge")


def test_hosts_and_the_failing_host_of_an_output_without_table(capsys: pytest.CaptureFixture[str]) -> None:
    ranks = "".join(f"#  Rank  {rank} Group  0 Pid 1 on compute-{rank + 1} device  0 [0000:53:00] GPU\n" for rank in (0, 1))
    failure = "compute-2: Test NCCL failure common.cu:1044 'unhandled system error / '\n"
    result = run(capsys, content=ranks + failure, expect_hosts=["compute-1", "compute-2", "compute-3"])
    assert result["failed"] and result["failed_hosts"] == ["compute-2"]
    assert "compute-2: Test NCCL failure common.cu:1044" in result["reasons"][0]
    assert "ranks are listed on compute-1, compute-2" in result["reasons"][0]
    assert result["reasons"][1] == "no rank ran on compute-3"


@pytest.mark.parametrize(("hosts", "would"), [(["compute-1", "compute-2"], "passed"), (["compute-1", "compute-3"], "failed")])
def test_what_stand_ins_printed_is_not_run_and_says_what_it_would_have_been(
    capsys: pytest.CaptureFixture[str], hosts: list, would: str
) -> None:
    said = "muster rehearsal: all_reduce_perf is a stand-in for p5.48xlarge; it looked at no hardware\n"
    text = (FIXTURES / "constructed-2.19.txt").read_text()
    result = run(capsys, content=text + said, expect_ranks=16, expect_hosts=hosts)
    assert (result["verdict"], result["rehearsed"], result["stand_ins"]) == ("not_run", would, ["all_reduce_perf"])
    assert [(table["verdict"], table["rehearsed"]) for table in result["tables"]] == [("not_run", would)]
    # The gate of a rehearsal fails where that of a fleet would.
    assert result.get("failed", False) == (would == "failed")
    assert "rehearsed" not in run(capsys, content=text, expect_ranks=16, expect_hosts=hosts)


def test_a_stand_in_without_a_table_is_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, content="muster rehearsal: all_reduce_perf is a stand-in for p5.48xlarge; it looked at no hardware\n")
    assert (result["failed"], result["verdict"], result["rehearsed"]) == (True, "not_run", "failed")


def test_another_data_type_than_the_one_asked_for_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """nccl-tests measures float when it does not know a type."""
    text = (FIXTURES / "constructed-2.19.txt").read_text()
    result = run(capsys, content=text, expect_ranks=16, datatype="bfloat16")
    assert result["reasons"] == ["all_reduce: the output has data type float, and the job asked for bfloat16"]
    assert run(capsys, content=text, expect_ranks=16, datatype="float")["verdict"] == "passed"


def test_a_data_type_that_nobody_published_fails_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    text = (FIXTURES / "constructed-2.19.txt").read_text().replace("   float ", "   half  ")
    result = run(capsys, content=text, instance_type="p5.48xlarge", nodes=2, fail_below=1.01, warn_below=0.5)
    assert (result["verdict"], result["remarks"]) == ("passed", ["all_reduce: the published busbw is of float, so no floor judges half"])
