# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Mixtral's feed-forward layer: the router sends each token to some experts, and the output is the weighted sum of theirs.

Tokens are sorted by expert, so that an expert works on consecutive rows. Under expert parallelism each rank has some of the experts, and
the ranks exchange the rows.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.comm import Groups, exchange, gather, local, rank_and_size, scatter_sum, sum_gradient, total
from trainer.layers import Linear
from trainer.loss import wide
from trainer.models import Shape


def products(rows: Tensor, counts: Tensor, weights: Tensor) -> Tensor:
    """rows (n, k) times the weights (experts, outputs, k) of their experts; `counts[e]` consecutive rows belong to expert e."""
    if rows.is_cuda and rows.dtype == torch.bfloat16:
        grouped = getattr(F, "grouped_mm", None) or torch._grouped_mm
        result: Tensor = grouped(rows, weights.transpose(-2, -1), offs=counts.cumsum(0).to(torch.int32))
        return result
    return one_by_one(rows, counts, weights)


@torch.compiler.disable  # it would be compiled again for every other number of rows
def one_by_one(rows: Tensor, counts: Tensor, weights: Tensor) -> Tensor:
    """As `products`, without a grouped matrix product."""
    return torch.cat([part @ weight.t() for part, weight in zip(rows.split(counts.tolist()), weights, strict=True)])


class ExpertWeights(nn.Module):
    """The weights of all experts, stacked; rows arrive sorted by expert."""

    def __init__(self, shape: Shape, groups: Groups) -> None:
        super().__init__()
        self.group = groups.expert
        inner = (shape.num_experts, shape.intermediate_size, shape.hidden_width)
        outer = (shape.num_experts, shape.hidden_width, shape.intermediate_size)
        self.gate_proj = nn.Parameter(torch.empty(inner))
        self.up_proj = nn.Parameter(torch.empty(inner))
        self.down_proj = nn.Parameter(torch.empty(outer))

    def work(self, rows: Tensor, counts: Tensor) -> Tensor:
        hidden = F.silu(products(rows, counts, local(self.gate_proj, rows))) * products(rows, counts, local(self.up_proj, rows))
        return products(hidden, counts, local(self.down_proj, rows))

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        return self.work(rows, counts) if self.group is None else self.exchanged(rows, counts)

    @torch.compiler.disable  # the number of rows that arrive differs from step to step
    def exchanged(self, rows: Tensor, counts: Tensor) -> Tensor:
        """As `work`, on the ranks that have the experts."""
        ranks = dist.get_world_size(self.group)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=self.group)
        sent, arriving = counts.view(ranks, -1).sum(1).tolist(), arriving.view(ranks, -1)
        received = arriving.sum(1).tolist()
        rows = exchange(rows, self.group, received, sent)
        # The rows arrive sorted by rank and then by expert; sort them by expert only.
        expert = torch.arange(arriving.shape[1], device=rows.device).repeat(ranks).repeat_interleave(arriving.flatten())
        order = expert.argsort(stable=True)
        made = self.work(rows[order], arriving.sum(0))
        return exchange(made[order.argsort()], self.group, sent, received)


class Experts(nn.Module):
    def __init__(self, shape: Shape, groups: Groups) -> None:
        super().__init__()
        self.shape = shape
        self.groups = groups
        self.gate = Linear(shape.hidden_width, shape.num_experts)
        self.experts = ExpertWeights(shape, groups)

    def balance(self, probabilities: Tensor, counts: Tensor) -> Tensor:
        """The cost of uneven use of the experts in the summed loss, of `counts` (samples, experts) tokens. For each sample it is tokens x
        experts x the sum over the experts of (share of the tokens) x (mean probability), so that it is the same in every layout."""
        tokens = probabilities.shape[1] * rank_and_size(self.groups.context)[1]
        uneven = self.shape.num_experts * (total(counts, self.groups.context) / tokens * probabilities.sum(1)).sum()
        # All tensor ranks compute the same value, so each adds its share.
        return self.shape.aux_loss * uneven / self.shape.num_layers / rank_and_size(self.groups.tensor)[1]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = gather(x, 1, self.groups.tensor)
        logits = F.linear(x, sum_gradient(local(self.gate.weight, x), self.groups.tensor))
        probabilities = wide(logits).softmax(-1)
        best, chosen = probabilities.topk(self.shape.experts_per_token, dim=-1)
        share = (best / best.sum(-1, keepdim=True)).to(x.dtype)
        counts = F.one_hot(chosen, self.shape.num_experts).sum((1, 2))  # by sample
        balance = self.balance(probabilities, counts.to(probabilities.dtype))
        order = chosen.flatten().argsort(stable=True)
        token = order // self.shape.experts_per_token
        rows = x.flatten(0, 1)
        made = self.experts(rows[token], counts.sum(0)) * share.flatten()[order].unsqueeze(1)
        mixed = torch.zeros_like(rows).index_add(0, token, made).view_as(x)
        return scatter_sum(mixed, 1, self.groups.tensor), torch.stack([balance])
