"""The storyteller as a judge: the exact likelihood of a text under the law it draws stories from.

−log P(x) = −Σ_i log p(x_i | x_<i) − log p(end | x) + log Z, in nats over the tokens and the end (`corpus.storyteller`).
A text too long for the model to end in time has P = 0; it is read in windows, its end is scored, and log Z is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import log
from pathlib import Path

import torch
from torch import Tensor

from tsdfm.corpus.storyteller import START, Storyteller, storyteller_in
from tsdfm.engine.distributed import pick_device
from tsdfm.judges.base import OnDone, Score, fingerprint
from tsdfm.judges.causal import CausalJudge, Encoded


@dataclass(frozen=True)
class StorytellerReader:
    """The model as `judges.causal` reads with it."""

    teller: Storyteller

    @property
    def device(self) -> torch.device:
        return self.teller.device

    @property
    def vocab(self) -> int:
        return self.teller.sizes["vocab"]

    def encode(self, texts: Sequence[str]) -> list[Encoded]:
        """Texts as tokens, merged by the scores of the model's own vocabulary."""
        made = [self.teller.vocabulary.encode(text) for text in texts]
        return [Encoded(ids, list(accumulate(characters))) for ids, characters in made]

    def logits(self, tokens: Tensor) -> Tensor:
        return self.teller.logits(tokens[:, : self.teller.positions])  # the end is scored and never read

    def hidden(self, tokens: Tensor) -> Tensor:
        return self.teller.hidden(tokens[:, : self.teller.positions])


@dataclass(frozen=True, kw_only=True)
class StorytellerJudge(CausalJudge):
    """A causal judge that knows the law's Z."""

    share_that_ends: float

    def score(
        self, texts: Sequence[str], *, prefixes: Sequence[str] | None = None, on_done: OnDone | None = None
    ) -> list[Score]:
        """A score for each text. With prefixes it is −log p(rest | prefix) of the draw, without Z."""
        found = super().score(texts, prefixes=prefixes, on_done=on_done)
        if prefixes is not None:
            return found
        rest = log(self.share_that_ends)
        return [replace(one, nll=one.nll + rest) if one.tokens < self.context else one for one in found]


def storyteller_judge(folder: str | Path, device: str = "auto", batch: int | None = None) -> StorytellerJudge:
    """The storyteller of a folder as a judge, in float32: the law is computed so."""
    teller = storyteller_in(folder, pick_device(device))
    return StorytellerJudge(
        reader=StorytellerReader(teller),
        name="storyteller",
        fingerprint=fingerprint("storyteller", "storyteller", teller.sha256),
        precision="fp32",
        context=teller.positions + 1,
        start=START,
        end=START,
        batch=batch,
        share_that_ends=teller.share_that_ends,
    )
