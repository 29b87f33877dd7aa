"""What is measured of a set of texts: most give one value a text, so that intervals can be put on their mean."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """What a judge says of one text: −log p in nats over `tokens` of its tokens, `hits` of which were its own guess.

    `characters` counts those of the scored text (the continuation alone, with a prefix).
    """

    nll: float
    tokens: int
    characters: int
    hits: int
