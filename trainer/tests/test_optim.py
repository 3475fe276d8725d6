# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""AdamW's moments: their type and place, and that they train as torch's AdamW does. test_layouts.py has them on several ranks."""

from typing import Any

import pytest

from trainer.tests.ranks import NO_TORCH, PATIENCE

pytest.importorskip("torch", reason=NO_TORCH)

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from trainer.comm import on_cpu
from trainer.config import OptimiserFlags
from trainer.launch import Ranks, join
from trainer.optim import MOMENTS, AdamW

START = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
STEPS = 30


def trained(**more: Any) -> tuple[list[torch.Tensor], AdamW | torch.optim.AdamW]:
    """A layer and its bias after some steps; with no flags torch's own AdamW makes them."""
    layer = nn.Linear(8, 4)
    with torch.no_grad():
        layer.weight.copy_(START)
        layer.bias.zero_()
    config = OptimiserFlags(lr=0.01, weight_decay=0.1, **more)
    groups = [{"params": [layer.weight], "weight_decay": 0.1}, {"params": [layer.bias], "weight_decay": 0.0}]
    optimizer = AdamW(layer, config) if more else torch.optim.AdamW(groups, lr=0.01, betas=(config.beta1, config.beta2))
    for step in range(STEPS):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
        (layer(x) - x[:, :4]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [layer.weight.detach(), layer.bias.detach()], optimizer


@pytest.mark.parametrize("more", [{"adamw": "fused"}, {"adamw": "foreach"}, {"offload": "optimizer"}])
def test_it_is_torchs_adamw(more: dict[str, str]) -> None:
    for ours, theirs in zip(trained(**more)[0], trained()[0], strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("adamw", ["fused", "foreach"])
def test_moments_in_bf16_train_nearly_the_same(adamw: str) -> None:
    found, optimizer = trained(moments="bf16", adamw=adamw)
    assert {value.dtype for state in optimizer.state.values() for name, value in state.items() if name in MOMENTS} == {torch.bfloat16}
    for ours, theirs in zip(found, trained()[0], strict=True):
        assert not torch.equal(ours, theirs)
        torch.testing.assert_close(ours, theirs, atol=0.01, rtol=0.05)


@pytest.mark.parametrize(("offload", "device"), [("none", "cuda"), ("optimizer", "cpu")])
def test_offloaded_moments_lie_in_host_memory(offload: str, device: str) -> None:
    """With a fake GPU."""
    join(Ranks(), "gloo", PATIENCE)
    mesh = DeviceMesh.from_group([dist.group.WORLD], "cuda", mesh=torch.arange(1), mesh_dim_names=("shard",))
    on_cpu(mesh)  # it reads its ranks, which are no fake
    layer = nn.Module()
    with FakeTensorMode():
        layer.weight = nn.Parameter(DTensor.from_local(torch.ones(4, 2, device="cuda"), mesh, [Shard(0)], run_check=False))
        state = AdamW(layer, OptimiserFlags(offload=offload)).state[layer.weight]
    dist.destroy_process_group()
    assert {state[name].to_local().device.type for name in MOMENTS} == {device}
    assert {state[name].shape for name in MOMENTS} == {layer.weight.shape}
