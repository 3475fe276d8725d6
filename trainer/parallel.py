# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The model over all ranks: FSDP2 on a one-dimensional mesh."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from trainer.llama import Llama, initial_value
from trainer.models import Shape


def build(shape: Shape, device: torch.device, bf16: bool, seed: int, std: float) -> Llama:
    """The model sharded over all ranks of the process group, with its first weights. Weights and optimizer stay float32."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    with torch.device("meta"):
        model = Llama(shape)
    precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if bf16 else MixedPrecisionPolicy()
    # The rotary tables enter each block in float32 and have to stay so.
    inner = MixedPrecisionPolicy(precision.param_dtype, precision.reduce_dtype, cast_forward_inputs=False)
    for block in model.model.layers:
        fully_shard(block, mesh=mesh, mp_policy=inner)
    # Needed again at once by the backward pass, so they are not resharded after the forward pass.
    fully_shard([model.model.norm, model.lm_head], mesh=mesh, mp_policy=precision, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, mp_policy=precision)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # The loss is divided by the tokens of all ranks, so gradients are summed; gloo cannot divide inside the sum.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    model.to_empty(device=device)
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, DTensor)
        full = initial_value(name, parameter.shape, seed, std).to(device)
        # Every rank has drawn the whole value, so each keeps its part and nothing is sent.
        part = distribute_tensor(full, mesh, parameter.placements, src_data_rank=None)
        with torch.no_grad():
            parameter.to_local().copy_(part.to_local())
    return model
