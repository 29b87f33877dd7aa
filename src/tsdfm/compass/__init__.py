"""The energy compass: a scalar E(x) that tells a good half-formed text from a bad one, trained once and frozen.

    from tsdfm.compass import load_compass
    compass = load_compass(Path("runs/demo/compass-uniform"))
    compass.energy(tokens)        # [B, L] → [B], lower is better

The stage is `tsdfm.compass.run.run(CompassSettings(...))`, its examination `tsdfm.compass.validate.validate(...)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tsdfm.compass.settings import CompassSettings, ValidateSettings
from tsdfm.lazy import lazily

if TYPE_CHECKING:
    from tsdfm.compass.model import Compass, load_compass
    from tsdfm.compass.negatives import STRATEGIES, Pairs, Strategy

__all__ = [
    "STRATEGIES",
    "Compass",
    "CompassSettings",
    "Pairs",
    "Strategy",
    "ValidateSettings",
    "load_compass",
]

__getattr__ = lazily(
    __name__,
    {
        "Compass": "model",
        "load_compass": "model",
        "STRATEGIES": "negatives",
        "Pairs": "negatives",
        "Strategy": "negatives",
    },
)
