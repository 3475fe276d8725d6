# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What `python -m trainer environment` says of a machine."""

import json
import subprocess
import sys
from typing import Any

import pytest

from trainer.tests.ranks import NO_TORCH, ROOT

pytest.importorskip("torch", reason=NO_TORCH)

import torch
import torch.distributed as dist

from trainer import environment


def test_it_says_what_torch_is_and_can_do() -> None:
    done = subprocess.run([sys.executable, "-m", "trainer", "environment"], cwd=ROOT, capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)
    assert said["torch"] == torch.__version__.partition("+")[0]
    assert said["two_ranks"]["gloo"] == "right"
    assert "gloo" in said["backends"] and {"mkldnn", "openmp"} <= set(said["cpu"])
    if said["cuda"]:
        assert said["nccl"]["version"].startswith("2.") and said["nccl"]["of"] == "the wheel"
    if not torch.cuda.is_available():
        assert (said["gpus"], said["cuda_available"], said["kernel"]) == (0, False, "no GPU")


def test_two_ranks_say_when_a_sum_is_wrong_or_a_rank_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "all_reduce", lambda _tensor: None)
    assert environment.two_ranks("gloo") == "all_reduce gave a wrong result"

    def fail(_tensor: Any) -> None:
        raise RuntimeError("connection\nreset")

    monkeypatch.setattr(dist, "all_reduce", fail)
    assert environment.two_ranks("gloo") == "RuntimeError: connection reset"
    monkeypatch.setattr(environment, "one_rank", lambda *_args: None)
    assert environment.two_ranks("gloo") == "no answer of a rank in 60 s"


@pytest.mark.parametrize(
    ("architectures", "capability", "lacks"),
    [
        (["sm_80", "sm_90", "compute_120"], (9, 0), []),
        (["sm_80", "sm_90"], (8, 6), []),
        (["sm_90a"], (9, 0), []),
        (["sm_86"], (8, 0), ["8.0"]),
        (["sm_80", "sm_90"], (10, 0), ["10.0"]),
        (["sm_80", "compute_90"], (10, 0), []),
        (["sm_100", "compute_120"], (9, 0), ["9.0"]),
        ([], (9, 0), ["9.0"]),
    ],
)
def test_a_gpu_needs_code_of_its_major_version_or_older_ptx(
    architectures: list[str], capability: tuple[int, int], lacks: list[str]
) -> None:
    assert environment.without_code(architectures, [capability, capability]) == lacks


def test_a_version_of_nccl() -> None:
    assert [environment.dotted(number) for number in (23007, 22903, 0)] == ["2.30.7", "2.29.3", ""]
