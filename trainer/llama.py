# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The model: a Llama with the parameter names and the half-split rotary embedding of the Hugging Face checkpoints. A module holds the whole
model or one part of a pipeline."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from trainer.comm import Groups, gather, local, rank_and_size
from trainer.layers import Attention, Embedding, FeedForward, Linear, Norm, linear, rope_tables
from trainer.loss import summed_cross_entropy
from trainer.models import Shape
from trainer.moe import Experts

# What is expensive to compute again.
ATTENTION = tuple(
    getattr(torch.ops.aten, f"_scaled_dot_product_{kind}").default
    for kind in ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
)
PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten._scaled_mm.default)


def keep_attention(half: bool = False) -> Any:
    """The two contexts of a recomputation that keeps attention, and with `half` every second matrix product: one for the first pass and
    one for the second."""
    products = {False: 0, True: 0}

    def policy(context: Any, op: Any, *_args: Any, **_options: Any) -> CheckpointPolicy:
        if half and op in PRODUCTS:
            products[context.is_recompute] += 1
            return CheckpointPolicy.PREFER_RECOMPUTE if products[context.is_recompute] % 2 else CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.MUST_SAVE if op in ATTENTION else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


CONTEXTS: dict[str, dict[str, Any]] = {
    "selective": {"context_fn": partial(keep_attention, half=True)},
    "attention": {"context_fn": keep_attention},
    "full": {},
}


class Block(nn.Module):
    """`recompute` says which activations the backward pass computes again, in the words of --activation_checkpointing."""

    def __init__(self, shape: Shape, groups: Groups) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape, groups)
        self.self_attn = Attention(shape, groups)
        self.post_attention_layernorm = Norm(shape, groups)
        if shape.num_experts:
            self.mlp: nn.Module = Experts(shape, groups)
        else:
            self.mlp = FeedForward(shape, groups)
        self.recompute = "none"

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Any:
        """The tokens after this block; with experts a pair of the tokens and the balance loss."""
        if self.recompute == "none" or not torch.is_grad_enabled():
            return self.work(x, cos, sin)
        return checkpoint(self.work, x, cos, sin, use_reentrant=False, preserve_rng_state=False, **CONTEXTS[self.recompute])

    def work(self, x: Tensor, cos: Tensor, sin: Tensor) -> Any:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        made = self.mlp(self.post_attention_layernorm(x))
        return (x + made[0], made[1]) if isinstance(made, tuple) else x + made


class Decoder(nn.Module):
    def __init__(self, shape: Shape, groups: Groups, layers: range, first: bool, last: bool) -> None:
        super().__init__()
        if first or (last and shape.tied):
            self.embed_tokens = Embedding(shape, groups)
        # A ModuleDict, so that a block has the same name in a part of a pipeline as in the whole model.
        self.layers = nn.ModuleDict({str(index): Block(shape, groups) for index in layers})
        if last:
            self.norm = Norm(shape, groups)


class Llama(nn.Module):
    """The whole model, or its blocks `layers`, with the embedding in the first part and the head in the last."""

    def __init__(
        self, shape: Shape, groups: Groups | None = None, layers: range | None = None, first: bool = True, last: bool = True
    ) -> None:
        super().__init__()
        self.shape = shape
        self.groups = groups or Groups()
        self.first = first
        self.last = last
        self.model = Decoder(shape, self.groups, range(shape.num_layers) if layers is None else layers, first, last)
        if last and not shape.tied:
            self.lm_head = Linear(shape.hidden_width, shape.vocab_size)
        self.rope: tuple[Tensor, Tensor] | None = None
        self.compute: torch.dtype | None = None  # type of the products if no wrapper casts the weights
        self.fused = False  # compile the loss

    def tables(self, length: int, device: torch.device) -> list[Tensor]:
        """The rotary tables of this rank's tokens in a sample of `length`."""
        # Not a buffer, because the model is built on the meta device, where a buffer has no content.
        if self.rope is None:
            dtype = torch.float64 if next(self.parameters()).dtype == torch.float64 else torch.float32
            self.rope = rope_tables(self.shape, device, dtype)
        rank, ranks = rank_and_size(self.groups.context)
        return [table[:length].chunk(ranks)[rank] for table in self.rope]

    def forward(self, x: Tensor, balance: Tensor | None = None, labels: Tensor | None = None) -> Any:
        """x is tokens (batch, tokens) in the first part and the output of the part before in the others.

        The last part returns the logits, or with `labels` (loss, balance): the summed cross entropy and the cost of uneven use of the
        experts. The other parts return the input of the next one: the tokens' vectors, with experts followed by the balance.
        """
        tensor = rank_and_size(self.groups.tensor)[1]
        length = x.shape[1] * rank_and_size(self.groups.context)[1] * (1 if self.first else tensor)
        cos, sin = self.tables(length, x.device)
        if self.first:
            x = self.model.embed_tokens(x)
            x = x if self.compute is None else x.to(self.compute)
        for block in self.model.layers.values():
            x = block(x, cos, sin)
            if self.shape.num_experts:
                x, more = x
                balance = more if balance is None else balance + more
        if not self.last:
            return (x, balance) if self.shape.num_experts else x
        x = gather(self.model.norm(x), 1, self.groups.tensor)
        head = local((self.model.embed_tokens if self.shape.tied else self.lm_head).weight)
        if labels is None:
            return gather(linear(x, head), 2, self.groups.tensor)
        loss = summed_cross_entropy(x.flatten(0, 1), head, labels.flatten(), self.groups.tensor, self.fused)
        return torch.stack([loss, loss.new_zeros(()) if balance is None else balance.sum()])
