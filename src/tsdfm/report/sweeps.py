"""Sweeps of the temperature, as every judge and both entropies see them, and the figures they make."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import torch

from tsdfm.charts import Axis, Chart, Point, Series
from tsdfm.metrics.intervals import Estimate
from tsdfm.metrics.matched import Curves, PooledEntropy, Sweep, compare, mean_entropy
from tsdfm.metrics.ngrams import entropy_bits
from tsdfm.report.cells import Cell
from tsdfm.report.desk import Desk
from tsdfm.report.rows import REAL, Plain, Row
from tsdfm.report.runs import TrainedRun
from tsdfm.report.summary import with_interval
from tsdfm.report.unigram import SUFFIX, Fit
from tsdfm.samples.guide import Guide

BY = ("", "bigram_")
"""What fields about an entropy begin with: that of the token histogram, and that of pooled bigrams."""
ENTROPIES = {"entropy_bits": "entropy, bits", "bigram_entropy_bits": "bigram entropy, bits"}
Seen = tuple[Row, dict[tuple[str, str], Sweep]]
"""The row of a cell, and by judge (its fingerprint) and entropy (of `BY`) its texts one by one."""


POINT = ("source", "steps", "nfe", "temperature", "samples", "collapsed", "checkpoint", "ppl", "ppl_interval",
         "ppl_corpus", "ppl_geometric", "entropy_bits", "entropy_interval", "entropy_nats", "bigram_entropy_bits",
         "valid", "valid_interval")  # fmt: skip
"""What is kept of a point of a curve."""
KEPT = ("ppl", "ppl_interval", "ppl_geometric", "ppl_geometric_interval", "ppl_corpus", "ppl_own", "ppl_own_interval")
"""What `cell_row` keeps of each judge's figures."""
HINT = "At equal entropy, lower is better. Filled marks: temperature 1."
DRAWS = 400


@dataclass(frozen=True)
class Line:
    """A method's sweep at one step count; `fit` is the bias it was made with, if it was."""

    label: str
    method: str
    run: TrainedRun
    steps: int
    cells: Sequence[Seen]
    fit: Fit | None = None

    def own(self) -> Row | None:
        """The row at T = 1."""
        return next((row for row, _ in self.cells if row.temperature == 1.0), None)

    def at(self, bits: float) -> float | None:
        """The perplexity at an entropy, log-linear between its temperatures; None outside of them."""
        return ppl_at([(row.entropy, row.ppl.value) for row, _ in self.cells if row.ppl is not None], bits)

    def matched(self, control: Line, judge: str, *, draws: int, seed: int) -> Plain:
        """The ratios to a control under one judge by both entropies, as numbers and as text."""
        out: Plain = {}
        for by in BY:
            mine, theirs = ([sweeps[judge, by] for _, sweeps in line.cells] for line in (self, control))
            found = compare(mine, theirs, draws=draws, seed=seed)
            told = {
                "at_own": ratio_text(found.at_own_entropy, found.at_own_interval) or "outside",
                "over": ratio_text(found.over_overlap, found.over_interval) or "no overlap",
                **{"overlap" if name == "span" else f"ratio_{name}": value for name, value in asdict(found).items()},
            }
            out |= {f"{by}{name}": list(v) if isinstance(v, tuple) else v for name, v in told.items()}
        return out


def ppl_at(points: Sequence[tuple[float, float]], bits: float) -> float | None:
    """The perplexity at an entropy of a curve of points (entropy, perplexity); None outside of it."""
    if not points:
        return None
    entropies, values = torch.tensor(points, dtype=torch.float64).T
    curve = Curves.of(entropies[None], values.log()[None])
    found = float(curve.at(torch.tensor([[bits]], dtype=torch.float64)).exp())
    return found if math.isfinite(found) else None


def ratio_text(value: float | None, interval: tuple[float, float] | None) -> str | None:
    """`0.873 [0.81, 0.94]`."""
    return with_interval(None if value is None else Estimate(value, *(interval or ())), ".3f", ".2f")


def see(desk: Desk, cell: Cell, row: Row, *, temperature: float, geometric: bool = False) -> Seen:
    """A cell before all judges, text by text; a text without a scored token has no perplexity."""
    written = cell.rows()
    own = mean_entropy(torch.tensor(entropy_bits(written), dtype=torch.float64))
    pooled, found = PooledEntropy(written), {}
    for judge in desk.judges:
        scores = desk.scores(cell, judge)
        nll, tokens = (
            torch.tensor(x, dtype=torch.float64) for x in zip(*((s.nll, s.tokens) for s in scores), strict=True)
        )
        ppl = torch.where(tokens > 0, (nll / tokens).clamp_max(709.0).exp(), torch.nan)
        for by, entropy in zip(BY, (own, pooled), strict=True):
            found[judge.fingerprint, by] = Sweep(temperature, ppl, geometric, entropy)
    return row, found


def swept(
    desk: Desk,
    run: TrainedRun,
    steps: int,
    temperatures: Sequence[float],
    *,
    geometric: bool = False,
    fitted: Fit | None = None,
) -> Line:
    """Sample and judge a run at every temperature."""
    suffix = f" {SUFFIX}" if fitted else ""
    label, bias, cells = f"{desk.runs.label(run)}{suffix}", fitted.bias if fitted else None, []
    for temperature in temperatures:
        cell = desk.cell(run, steps, temperature=temperature, bias=bias)
        row = desk.row(run, cell, name=label)
        cells.append(see(desk, cell, row, temperature=temperature, geometric=geometric))
    return Line(label, f"{run.method}{suffix}", run, steps, cells, fitted)


def point_of(row: Row) -> Plain:
    """A point of a curve, for JSON."""
    return {"method": row.method, **{name: value for name, value in row.plain().items() if name in POINT}}


def cell_row(
    desk: Desk, run: TrainedRun, cell: Cell, *, guide: Guide | None = None, control: Line | None = None
) -> Plain:
    """A row of a run's cell, with the seconds its texts took and what every judge says of them.

    With a `control`, also the ratio to that sweep at the same entropy, under every judge.
    """
    row = desk.row(run, cell, guide=guide)
    out = row.plain()
    judges = {name: {k: v for k, v in found.items() if k in KEPT} for name, found in out["judges"].items()}
    if control is not None:
        mine = Line("", "", run, row.steps or 0, [see(desk, cell, row, temperature=1.0)])
        for name, found in judges.items():
            found |= mine.matched(control, name, draws=DRAWS, seed=desk.asked.seed)
        out |= {k: v for k, v in next(iter(judges.values())).items() if k not in KEPT}
    out |= {f"ppl {name}": found["ppl"] for name, found in list(judges.items())[1:]}
    del out["texts"]
    seconds = len(cell.texts) * cell.length / out["tokens_per_s"]
    return {**out, "judges": judges, "marks": row.marks, "seconds": seconds, **desk.about(run)}


class Spot(NamedTuple):
    """A point of a figure: what it is of, its entropy and its perplexity."""

    source: str
    steps: int
    method: str
    temperature: float
    entropy: float
    ppl: float


def frontier_charts(
    points: Sequence[Row], real: Row | None, entropy: str, ppl: str = "ppl", style: dict[str, int] | None = None
) -> dict[str, list[Chart]]:
    """By source: perplexity against an entropy, for each step count a chart with a curve for each method."""

    def place(row: Row) -> tuple[float, float] | None:
        found, known = getattr(row.text, entropy), row.ppl if ppl == "ppl" else getattr(row.scores, ppl)
        return (found.value, known.value) if found and known and known.value > 0 else None

    spots = [
        Spot(str(row.source), row.steps, row.label, row.temperature or 0.0, *at)
        for row in points
        if row.steps is not None and (at := place(row)) is not None
    ]
    styles = style or {name: i for i, name in enumerate(dict.fromkeys(row.label for row in points))}
    return charts_of(spots, place(real) if real else None, entropy, styles)


def charts_of(
    spots: Sequence[Spot], target: tuple[float, float] | None, entropy: str, styles: Mapping[str, int]
) -> dict[str, list[Chart]]:
    """The same of points that are known; `target` is held-out text's."""
    out = dict[str, list[Chart]]()
    for source, steps in dict.fromkeys((one.source, one.steps) for one in spots):
        here = [one for one in spots if (one.source, one.steps) == (source, steps)]
        series = []
        for method in dict.fromkeys(one.method for one in here):
            mine = sorted((one for one in here if one.method == method), key=lambda one: one.temperature)
            dots = [
                Point(x=one.entropy, y=one.ppl, note=f"T = {one.temperature:g}", hollow=one.temperature != 1.0)
                for one in mine
            ]
            series.append(Series(name=method, style=styles[method], points=dots))
        words = f"{source} source, {steps} {'pass' if steps == 1 else 'passes'}"
        chart = Chart(
            title=f"perplexity against entropy, {words}",
            caption=words,
            x=Axis(label=ENTROPIES[entropy]),
            y=Axis(label="perplexity", scale="log"),
            series=series,
            marks=[(*target, REAL)] if target else [],
        )
        out.setdefault(source, []).append(chart)
    return out
