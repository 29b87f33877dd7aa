"""Sweeps of the temperature, as every judge and both entropies see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tsdfm.report.cells import Cell
from tsdfm.report.desk import Desk
from tsdfm.report.frontier import Comparison, PooledEntropy, Sweep, compare, mean_entropy
from tsdfm.report.metrics import entropy_bits
from tsdfm.report.runs import Run

BY = ("", "bigram_")
"""What fields about an entropy begin with: that of the token histogram, and that of pooled bigrams."""


@dataclass(frozen=True)
class Seen:
    """One cell: its row, and by judge and entropy its texts one by one."""

    row: dict[str, Any]
    sweeps: dict[tuple[str, str], Sweep]


@dataclass(frozen=True)
class Line:
    """A method's sweep at one step count."""

    label: str
    method: str
    model: Run
    steps: int
    cells: list[Seen]
    about: dict[str, Any]

    def sweeps(self, judge: str, by: str) -> list[Sweep]:
        """The cells under one judge (its fingerprint), by one entropy of `BY`."""
        return [seen.sweeps[judge, by] for seen in self.cells]

    def own(self) -> dict[str, Any] | None:
        """The row at T = 1."""
        return next((seen.row for seen in self.cells if seen.row["temperature"] == 1.0), None)


def see(desk: Desk, cell: Cell, row: dict[str, Any], *, geometric: bool, temperature: float) -> Seen:
    """A cell before all judges."""
    written = cell.rows()
    own = mean_entropy(torch.tensor(entropy_bits(written), dtype=torch.float64))
    pooled = PooledEntropy(written)
    found = {}
    for judge in desk.bench.judges():
        ppl = desk.bench.perplexities(cell, judge)
        for by, entropy in zip(BY, (own, pooled), strict=True):
            found[judge.fingerprint, by] = Sweep(temperature, ppl, geometric, entropy)
    return Seen(row, found)


def swept(
    desk: Desk,
    model: Run,
    steps: int,
    temperatures: Sequence[float],
    *,
    geometric: bool = False,
    bias: Tensor | None = None,
    suffix: str = "",
    about: dict[str, Any] | None = None,
) -> Line:
    """Sample and judge a run at every temperature."""
    label, method = (f"{name} {suffix}".strip() for name in (desk.label(model), model.method))
    cells = []
    for warmth in temperatures:
        cell = desk.cell(model, steps, temperature=warmth, bias=bias)
        row = desk.row_of(model, cell, name=label)
        cells.append(see(desk, cell, row, geometric=geometric, temperature=warmth))
    return Line(label, method, model, steps, cells, about or {})


def matched(mine: Line, control: Line, judge: str, *, draws: int, seed: int) -> dict[str, Any]:
    """The ratios of a line to a control under one judge, by both entropies."""
    out: dict[str, Any] = {}
    for by in BY:
        found = compare(mine.sweeps(judge, by), control.sweeps(judge, by), draws=draws, seed=seed)
        out |= {f"{by}{name}": value for name, value in shown(found).items()}
    return out


def shown(found: Comparison) -> dict[str, Any]:
    """The numbers of a comparison, and as text."""
    return {
        "at_own": ratio_text(found.at_own_entropy, found.at_own_interval) or "outside",
        "over": ratio_text(found.over_overlap, found.over_interval) or "no overlap",
        "ratio_at_own_entropy": found.at_own_entropy,
        "ratio_at_own_interval": list(found.at_own_interval) if found.at_own_interval else None,
        "ratio_over_overlap": found.over_overlap,
        "ratio_over_interval": list(found.over_interval) if found.over_interval else None,
        "overlap": list(found.span) if found.span else None,
    }


def ratio_text(value: float | None, interval: tuple[float, float] | None) -> str | None:
    """`0.873 [0.81, 0.94]`."""
    if value is None:
        return None
    return f"{value:.3f}" + (f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else "")
