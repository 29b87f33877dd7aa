"""FS-DFM: a few-step student distilled from its own average, by RK-4 chains with blind midpoints (2509.20624).

    h from {2^0 … 2^−10},   t on the 1/1024 grid,   x_t on the path between x_0 and x_1
    h = 1/1024   generalised KL against x_1, or KL against the frozen teacher
    h > 1/1024   KL against the semi-teacher's RK-4 target of steps h/2

The network is told t and h, and writes by the cumulative jump.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tsdfm.distil.settings import StudentSettings
from tsdfm.methods import StudentMethod


@dataclass(frozen=True, kw_only=True)
class FSDFMSettings(StudentSettings):
    """FS-DFM: a few-step model distilled from a teacher, by blind midpoints."""


class FSDFM(StudentMethod):
    """Few-step discrete flow matching."""

    name, title = "fs-dfm", "FS-DFM"
    help = "few-step student, by RK-4 chains with blind midpoints"
    settings: ClassVar[type] = FSDFMSettings


METHOD = FSDFM()
