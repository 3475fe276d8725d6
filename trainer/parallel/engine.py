# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""One step of the model on this rank: forward and backward pass, clipping, evaluation."""

import contextlib
import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel

from trainer.config import TrainConfig
from trainer.layout import Layout
from trainer.loss import IGNORED
from trainer.parallel.pipeline import Pipeline
from trainer.parallel.precision import LossScale


@dataclass
class Engine:
    """A model over the ranks of the job. Every rank makes the same calls in the same order."""

    config: TrainConfig
    layout: Layout
    device: torch.device
    precision: str
    remark: str
    parts: list[nn.Module]
    model: nn.Module  # all parts of this rank under the names of the whole model, for checkpoints
    context_group: dist.ProcessGroup | None
    pipeline: Pipeline | None
    copies: dict[str, int]  # by parameter, how many ranks have the same part
    scale: LossScale | None = None
    weights: Tensor | None = None  # of the gradients' norms in the whole norm, so that a part counts once however many ranks have it

    @property
    def data_rank(self) -> int:
        return self.layout.data_rank(dist.get_rank())

    @property
    def data_ranks(self) -> int:
        return self.layout.data_ranks

    @property
    def samples(self) -> int:
        """Samples of this rank in one step."""
        return self.config.train_batch_size * self.config.gradient_accumulation_steps

    @property
    def speaks(self) -> bool:
        """Whether this rank's loss counts. Other ranks have the same loss or none."""
        last = self.layout.pipeline_rank(dist.get_rank()) == self.layout.pipeline - 1
        return last and self.layout.tensor_rank(dist.get_rank()) == 0

    def _cut(self, batch: Tensor, labels: Tensor | None, micro: int) -> tuple[list[Tensor], list[Tensor]]:
        """Tokens and labels of the micro-batches: this rank's piece of its samples."""
        tokens, labels = (batch[:, :-1], batch[:, 1:]) if labels is None else (batch, labels)
        if self.context_group:
            tokens, labels = (x.chunk(self.layout.context, dim=1)[dist.get_rank(self.context_group)] for x in (tokens, labels))
        return list(tokens.split(micro)), list(labels.split(micro))

    def _around(self) -> contextlib.AbstractContextManager[Any]:
        if self.device.type != "cuda":
            return contextlib.nullcontext()
        order = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
        if self.config.deterministic:
            order = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
        return sdpa_kernel(order, set_priority=True)

    def _counted(self, batch: Tensor, labels: Tensor | None) -> Tensor:
        """The number of tokens of all ranks that the loss counts, a scalar on the device."""
        if labels is None:
            return torch.full((), batch.shape[0] * (batch.shape[1] - 1) * self.data_ranks, dtype=torch.float64, device=self.device)
        counted = (labels != IGNORED).sum().double()
        dist.all_reduce(counted)
        # Ranks of one pipeline, tensor or context group have the same samples.
        return (counted / (self.layout.world_size // self.data_ranks)).clamp(min=1)

    def forward_backward(self, batch: Tensor, labels: Tensor | None = None) -> Tensor:
        """Add the gradients of this rank's samples of one step: `batch` (samples, context + 1), or tokens and `labels` of the same size
        with -100 for a token that does not count. Returns this rank's share of the loss; the shares of all ranks add up to the mean."""
        tokens, wanted = self._cut(batch, labels, self.config.train_batch_size)
        counted = self._counted(batch, labels)
        # DDP averages the gradients of its ranks instead of adding them up.
        scale = (self.scale.value if self.scale else 1.0) * (self.layout.shard if self.layout.ddp else 1) / counted
        with self._around():
            if self.pipeline:
                results = self.pipeline.run(tokens, wanted, scale)
            else:
                results = []
                part = self.parts[0]
                for number, (x, y) in enumerate(zip(tokens, wanted, strict=True)):
                    sync(part, number == len(tokens) - 1)
                    result = part(x, labels=y)
                    (result.sum() * scale.to(result.dtype)).backward()
                    results.append(result.detach())
        return self._share(results, counted)

    @torch.no_grad()
    def evaluate(self, batch: Tensor, labels: Tensor | None = None) -> Tensor:
        """This rank's share of the mean loss of a validation batch, without gradients."""
        tokens, wanted = self._cut(batch, labels, self.config.train_batch_size)
        with self._around():
            if self.pipeline:
                results = self.pipeline.run(tokens, wanted, None)
            else:
                results = [self.parts[0](x, labels=y) for x, y in zip(tokens, wanted, strict=True)]
        for part in self.parts:
            if isinstance(part, FSDPModule):
                part.reshard()  # a backward pass would have done it
        return self._share(results, self._counted(batch, labels))

    def _share(self, results: list[Tensor], counted: Tensor) -> Tensor:
        dtype = torch.float64 if self.precision == "fp64" else torch.float32
        if not self.speaks:
            return torch.zeros((), dtype=dtype, device=self.device)
        return torch.stack(results)[:, 0].sum() / counted.to(dtype)

    def clip(self, limit: float) -> Tensor:
        """Scale the gradients down to the norm `limit`, 0 for none. Returns the norm of all ranks' gradients before that."""
        found = [(name, p.grad) for name, p in self.model.named_parameters() if p.grad is not None]
        gradients = [gradient.to_local() if isinstance(gradient, DTensor) else gradient for _, gradient in found]
        if self.weights is None:
            self.weights = torch.tensor([1 / self.copies[name] for name, _ in found], dtype=torch.float64, device=self.device)
        norms = torch.stack(torch._foreach_norm(gradients)).double()
        squares = (norms**2 * self.weights).sum()
        dist.all_reduce(squares)
        scale = self.scale.value if self.scale else 1.0
        norm = squares.sqrt() / scale
        torch._foreach_mul_(gradients, (((limit or math.inf) / (norm + 1e-6)).clamp(max=1.0) / scale).to(gradients[0].dtype))
        return norm

    def keeps(self, norm: float) -> bool:
        """Whether the optimizer may use the gradients of this norm. With fp16 an overflow is expected now and then; it lowers the scale
        of the next step."""
        if self.scale is None:
            return True
        finite = math.isfinite(norm)
        self.scale.update(finite)
        return finite


def sync(part: nn.Module, last: bool, whole: bool = False) -> None:
    """Exchange gradients only with a step's last micro-batch; with `whole` keep the gathered weights until then, too. Call this before the
    micro-batch's forward pass."""
    if isinstance(part, DistributedDataParallel):
        part.require_backward_grad_sync = last
    elif isinstance(part, FSDPModule):
        part.set_requires_gradient_sync(last)
        part.set_is_last_backward(last)
        part.set_reshard_after_backward(last or not whole)
