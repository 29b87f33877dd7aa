"""What the page's figures show: rows, validations and training logs as charts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tsdfm.charts import Axis, Chart, Point, Series
from tsdfm.compass.figure import energy_chart
from tsdfm.metrics.intervals import Estimate
from tsdfm.report.page.gather import Gathered
from tsdfm.report.rows import REAL, Row, finite
from tsdfm.report.runs import TrainedRun
from tsdfm.report.sweeps import ENTROPIES as ENTROPIES
from tsdfm.report.sweeps import frontier_charts

MOST = 240  # points of a training curve: more than its pixels say nothing
Charts = dict[str, Chart]

CURVES = (
    ("train", "loss", "training loss"),
    ("eval", "elbo", "held-out {bound}, nats a token"),
    ("eval", "kl", "held-out KL of a large step"),
    ("eval", "strategy_acc", "held-out pairs ranked right"),
)
NAVIGATION = (
    ("what navigation did", "share", {"navigated": "midpoints navigated", "accept": "refinements kept",
                                      "diversity": "candidates differ"}, (3, 1, 2)),
    ("blind and navigated states", "energy", {"energy_blind": "blind", "energy_navigated": "navigated"}, (1, 3)),
    ("tokens a navigated midpoint", "tokens", {"jumped": "changed by the jump",
                                               "replaced": "replaced by the refinement"}, (3, 1)),
)  # fmt: skip
PASSES, STEPS = Axis(label="network passes", scale="log2"), Axis(label="training steps")
MEASURES = {
    "valid": Axis(label="valid stories", percent=True),
    "ppl": Axis(label="perplexity", scale="log"),
    "entropy_bits": Axis(label="entropy, bits"),
}


def measure_of(row: Row, name: str) -> Estimate | None:
    """A measure of a row, by its name in JSON."""
    for place in (row, row.text, row.scores):
        found = getattr(place, name, None)
        if found is not None:
            return found if isinstance(found, Estimate) else Estimate(float(found))
    return None


def quality(found: Gathered, source: str) -> Charts:
    """A chart for each measure the rows of one source have, against steps."""
    rows, styles, out = [row for row in found.made if row.source == source], found.styles(), Charts()
    methods = {name: [row for row in rows if row.label == name] for name in dict.fromkeys(row.label for row in rows)}
    for name, axis in MEASURES.items():
        series = []
        for method, mine in methods.items():
            known = [(row, value) for row in mine if (value := measure_of(row, name)) is not None]
            points = sorted((point(*one) for one in known), key=lambda p: p.x)
            series += [Series(name=method, style=styles[method], points=points)] if points else []
        real = measure_of(found.real, name) if found.real else None
        refs = [(real.value, REAL)] if real else []
        if real and name == "entropy_bits":
            # the line of collapse also keeps the axis wide: hundredths of a bit should not look like much
            refs.append((real.value - 1.0, "collapsed below"))
        caption = (axis.label, f"{axis.label} against steps, {source} source")
        out |= drawn(f"{name}-{source}", *caption, PASSES, axis, series, refs=refs)
    return out


def drawn(name: str, caption: str, title: str, x: Axis, y: Axis, series: Sequence[Series], **more: Any) -> Charts:
    """A chart by its name, if it has a curve."""
    return {name: Chart(title=title, caption=caption, x=x, y=y, series=series, **more)} if series else {}


def point(row: Row, value: Estimate) -> Point:
    """One measured point with its interval."""
    low, high = (end if math.isfinite(end) else None for end in value[1:])
    note = "collapsed" if row.collapsed else ""
    return Point(x=row.steps or 0, y=value.value, low=low, high=high, hollow=row.collapsed, note=note)


def frontier(found: Gathered, entropy: str) -> dict[str, Charts]:
    """By source: perplexity against an entropy, a chart for each step count."""
    drawn = frontier_charts(found.points, found.real, entropy, style=found.styles())
    return {source: {f"{entropy}-{source}-{i}": c for i, c in enumerate(some)} for source, some in drawn.items()}


def energy(found: Gathered) -> Charts:
    """The mean energy of each time bin within one standard deviation, a chart for each compass."""
    known = {source: exam for source, exam in found.compass.items() if any(finite(b.get("mean")) for b in exam["bins"])}
    return {f"energy-{source}": energy_chart({**exam, "source": source}) for source, exam in known.items()}


def training(group: str, runs: Sequence[TrainedRun]) -> Charts:
    """The curves of some runs, a chart for each quantity; bounds of different names do not share one."""
    out = Charts()
    for kind, column, words in CURVES:
        for number, title in enumerate(dict.fromkeys(words.format(bound=run.bound_label) for run in runs)):
            series = [
                Series(name=run.name, style=index % 8, points=points)
                for index, run in enumerate(runs)
                if words.format(bound=run.bound_label) == title and len(points := curve(run, kind, column)) > 1
            ]
            values = [p.y for one in series for p in one.points]
            log = series and min(values) > 0 and max(values) / min(values) > 5
            name, axis = f"{column}-{group.split()[0].lower()}", Axis(label=title, scale="log" if log else "linear")
            name += f"-{number}" if number else ""
            out |= drawn(name, title, f"{title}: {group.lower()}", STEPS, axis, series, dots=False)
    return out


def navigation(run: TrainedRun) -> Charts:
    """What the compass did while a student was trained."""
    out = Charts()
    for title, unit, columns, styles in NAVIGATION:
        series = []
        for (column, name), style in zip(columns.items(), styles, strict=True):
            points = max((curve(run, kind, f"nav/{column}") for kind in ("train", "eval")), key=len)
            series += [Series(name=name, style=style, points=points)] if points else []
        axis = Axis(label=unit, percent=unit == "share")
        out |= drawn(f"nav-{unit}-{run.name}", title, f"{title}: {run.name}", STEPS, axis, series)
    return out


def curve(run: TrainedRun, kind: str, column: str) -> list[Point]:
    """One column of a run's metrics, thinned to what can be seen."""
    lines = [line for line in run.lines if line["kind"] == kind and finite(line.get(column))]
    points = [Point(x=line["step"], y=line[column]) for line in lines]
    every = math.ceil(len(points) / MOST) or 1
    return [*points[:-1:every], *points[-1:]]
