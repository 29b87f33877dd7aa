"""The objective of the in-house judge: −log p(x_i | x_0 … x_{i−1}), the mean over the positions after the first.

In a row of one document the first token is its anchor, so a row's whole probability is learnt, its end and the padding
after it included; a packed row begins anywhere in a document, and its first token is only read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from tsdfm.engine.rows import held_out_parts
from tsdfm.engine.task import Context
from tsdfm.flow import bits_per_character, cross_entropy
from tsdfm.judges.settings import JudgeTrainSettings
from tsdfm.nn.causal import CausalSpec
from tsdfm.tokens.loader import Batch
from tsdfm.tokens.rows import TokenRows


class JudgeTask:
    """What the training loop asks for: the network, the loss of a batch, and the held-out likelihood.

    A prompt is text like any other to a model that reads from left to right.
    """

    prompts: ClassVar[bool] = True

    def __init__(self, settings: JudgeTrainSettings, spec: CausalSpec, valid: TokenRows | None) -> None:
        self.settings, self.spec, self.valid = settings, spec, valid
        torch.manual_seed(settings.loop.seed)  # fresh weights; nothing else uses torch's own generator here
        self.model: nn.Module = spec.network()

    def bind(self, context: Context) -> None:
        """Take the processes that share held-out rows."""
        self.world = context.world

    def loss(self, model: nn.Module, batch: Batch, step: int) -> tuple[Tensor, Mapping[str, Tensor]]:
        """−log p(x_i | x_0 … x_{i−1}), the mean over positions 1 … L − 1."""
        return cross_entropy(model(batch.tokens[:, :-1]), batch.tokens[:, 1:]), {}

    def evaluate(self, model: nn.Module, step: int) -> Mapping[str, float]:
        """Held-out −log p in nats per token, and in bits per character."""
        if self.valid is None:
            return {}
        world, settings = self.world, self.settings
        rows, parts = held_out_parts(self.valid, settings.eval_rows, settings.loop, world)
        total = torch.zeros((), dtype=torch.float64, device=world.device)
        for part in parts:
            tokens = torch.from_numpy(self.valid.take(part).astype("int64")).to(world.device)
            costs = cross_entropy(model(tokens[:, :-1]), tokens[:, 1:], reduction="none")
            total += costs.double().sum()
        nats = total.item() / (sum(map(len, parts)) * (self.spec.length - 1))
        characters = self.valid.count_characters(self.valid.take(rows)[:, 1:])
        bits = bits_per_character(nats, len(rows) * (self.spec.length - 1), characters) if characters else float("nan")
        return {"nll": nats, "bits_per_character": bits}
