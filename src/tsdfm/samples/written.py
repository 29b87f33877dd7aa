"""What a model writes: texts with how they came about, and texts on their way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from tsdfm.samples.trajectory import Trajectory


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Finished texts. `tokens` [n, L]; `nfe` network passes a text; `seconds` of generation for all of them.

    `passes` are those of each text, whose mean is `nfe`: a jump that stops when a text is finished takes more of them
    for some texts than for others.
    `first` is the number of the first one; `prefix` or `infill` of each text are there where they were asked for.
    A guided generation also has `compass_calls`, states the compass scored for each text, and what `navigation` did.
    """

    texts: list[str]
    tokens: Tensor
    nfe: float
    seconds: float
    passes: list[int]
    trajectory: Trajectory | None = None
    compass_calls: float = 0.0
    navigation: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    first: int = 0
    prefix: list[str] | None = None
    infill: list[str] | None = None

    @property
    def answers(self) -> list[str]:
        """What each text says after its prefix, or all of it where it has none."""
        starts = self.prefix or [""] * len(self.texts)
        return [text.removeprefix(start) for text, start in zip(self.texts, starts, strict=True)]

    def records(self) -> list[dict[str, Any]]:
        """A record of each text, for JSON: its number, how it was made, what was given of it, and the text."""
        given = {"prefix": self.prefix, "infill": self.infill, "answer": self.answers if self.prefix else None}
        return [
            {
                "index": self.first + i,
                "seed": self.seed,
                "nfe": self.passes[i],
                **{name: each[i] for name, each in given.items() if each is not None},
                "text": text,
                "tokens": row,
            }
            for i, (text, row) in enumerate(zip(self.texts, self.tokens.tolist(), strict=True))
        ]

    def plain(self) -> dict[str, Any]:
        """All of it for JSON, without the trajectory."""
        guided = {"compass_calls": self.compass_calls, "navigation": self.navigation} if self.navigation else {}
        return {"seed": self.seed, "nfe": self.nfe, "seconds": self.seconds, **guided, "texts": self.records()}


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Texts that are being written, after `passes` of `of` network passes, at time `t`; a batch of them.

    `numbers` are the texts' own, `tokens` [B, L] their state, and `texts` how that reads, U+FFFD for [MASK].
    """

    passes: int
    of: int
    t: float
    numbers: list[int]
    tokens: Tensor
    texts: list[str]
