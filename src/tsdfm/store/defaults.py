"""What a shipped model says of how it is sampled: in a bundle's manifest, and in the config of an export."""

from __future__ import annotations

from dataclasses import dataclass

from tsdfm.settings import Settings, option

JUMP = "how a state moves: auto is the method's own; euler, cumulative, ancestral, or one that a method brings"


@dataclass(frozen=True, kw_only=True)
class SampleDefaults(Settings):
    """What `tsdfm sample` does with a shipped student unless it is told otherwise."""

    n: int = option(2, "texts to write", low=1)
    steps: int = option(8, "network passes for each text", low=1)
    temperature: float = option(1.0, "below 1 is safer and narrower", low=0)
    jump: str = option("auto", JUMP)
