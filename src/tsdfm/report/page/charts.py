"""What the figures show, as plain data: one dictionary a chart, which the page's script draws.

{"title": …, "x": {"label", "scale"}, "y": {"label", "scale", "format"}, "refs": [{"y", "label"}], "marks": […],
 "series": [{"name", "style", "points": [{"x", "y", "low", "high", "note", "hollow"}], "band": false}]}
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tsdfm.report.page.gather import Found, Stage, label
from tsdfm.report.page.markup import REAL, style_of

MOST = 240  # points of a training curve: more than its pixels say nothing

Chart = dict[str, Any]


@dataclass(frozen=True)
class Measure:
    """A column that is drawn against the steps."""

    name: str
    interval: str
    title: str
    scale: str = "linear"
    format: str = ""


MEASURES = (
    Measure("valid", "valid_interval", "valid stories", format="percent"),
    Measure("ppl", "ppl_interval", "perplexity", scale="log"),
    Measure("entropy_bits", "entropy_interval", "entropy, bits"),
)


def quality(found: Found, source: str) -> dict[str, Chart]:
    """A chart for each measure the rows of one source have."""
    rows, out = [row for row in found.made if row["source"] == source], {}
    for measure in MEASURES:
        series = []
        for method in dict.fromkeys(label(row) for row in rows):
            mine = sorted((r for r in rows if label(r) == method and finite(r.get(measure.name))), key=steps_of)
            if mine:
                series.append(a_series(method, found, [at(row, measure) for row in mine]))
        if series:
            out[f"{measure.name}-{source}"] = {
                "title": f"{measure.title} against steps, {source} source",
                "caption": measure.title,
                "x": {"label": "network passes", "scale": "log2"},
                "y": {"label": measure.title, "scale": measure.scale, "format": measure.format},
                "series": series,
                "refs": reference(found.real, measure),
            }
    return out


def steps_of(row: dict[str, Any]) -> int:
    return int(row["steps"])


def at(row: dict[str, Any], measure: Measure) -> dict[str, Any]:
    """One measured point with its interval."""
    point = {"x": steps_of(row), "y": row[measure.name]}
    interval = row.get(measure.interval)
    if isinstance(interval, list) and len(interval) == 2 and all(map(finite, interval)):
        point |= {"low": interval[0], "high": interval[1]}
    return point | ({"hollow": True, "note": "collapsed"} if row.get("collapsed") else {})


def reference(real: dict[str, Any] | None, measure: Measure) -> list[dict[str, Any]]:
    """Held-out text as a line across."""
    value = real.get(measure.name) if real else None
    if value is None or not finite(value):
        return []
    line = [{"y": value, "label": REAL}]
    # the line of collapse also keeps the axis wide: hundredths of a bit should not look like much
    return [*line, {"y": value - 1.0, "label": "collapsed below"}] if measure.name == "entropy_bits" else line


def frontier(found: Found, entropy: str, source: str) -> dict[str, Chart]:
    """Perplexity against an entropy: a chart for each step count, a curve over temperatures for each method."""
    points, out = [p for p in found.frontier_points() if finite(p.get(entropy))], {}
    made = [p for p in points if p.get("steps") is not None and p.get("source") == source]
    real = next((p for p in (*points, *found.rows) if p.get("method") == REAL and finite(p.get(entropy))), None)
    for steps in sorted({steps_of(p) for p in made}):
        here, series = [p for p in made if steps_of(p) == steps], []
        for method in dict.fromkeys(label(p) for p in here):
            mine = sorted((p for p in here if label(p) == method), key=lambda p: p.get("temperature") or 0.0)
            series.append(a_series(method, found, [warm(p, entropy) for p in mine]))
        words = f"{steps} {'pass' if steps == 1 else 'passes'}"
        out[f"{entropy}-{source}-{steps}"] = {
            "title": f"perplexity against entropy at {words}, {source} source",
            "caption": words,
            "x": {"label": "entropy, bits" if entropy == "entropy_bits" else "bigram entropy, bits", "scale": "linear"},
            "y": {"label": "perplexity", "scale": "log"},
            "series": series,
            "marks": [{"x": real[entropy], "y": real["ppl"], "label": REAL}] if real else [],
        }
    return out


def warm(point: dict[str, Any], entropy: str) -> dict[str, Any]:
    """A point of the frontier; T = 1 is filled, the others are hollow."""
    warmth = point.get("temperature")
    return {"x": point[entropy], "y": point["ppl"], "note": f"T = {warmth}", "hollow": warmth != 1.0}


def energy(found: Found) -> dict[str, Chart]:
    """The mean energy of each time bin within one standard deviation, a chart for each compass."""
    out = {}
    for source, exam in found.compass.items():
        bins = [b for b in exam.get("bins", []) if finite(b.get("mean"))]
        points = [
            {
                "x": (b["from"] + b["to"]) / 2,
                "y": b["mean"],
                "low": b["mean"] - (b.get("std") or 0.0),
                "high": b["mean"] + (b.get("std") or 0.0),
            }
            for b in bins
        ]
        if points:
            out[f"energy-{source}"] = {
                "title": f"energy against time, {source} source",
                "caption": f"{source} source",
                "x": {"label": "time t", "scale": "linear", "low": 0, "high": 1},
                "y": {"label": "energy", "scale": "linear"},
                "series": [{"name": "energy of held-out states", "style": 3, "points": points, "band": True}],
            }
    return out


CURVES = (
    ("train", "loss", "training loss"),
    ("eval", "elbo", "held-out bound, nats a token"),
    ("eval", "kl", "held-out KL of a large step"),
    ("eval", "strategy_acc", "held-out pairs ranked right"),
)
NAVIGATION = (
    ("what navigation did", {"navigated": 3, "accept": 1, "diversity": 2}, "share"),
    ("blind and navigated states", {"energy_blind": 1, "energy_navigated": 3}, "energy"),
    ("tokens a navigated midpoint", {"jumped": 3, "replaced": 1}, "tokens"),
)
WORDS = {
    "navigated": "midpoints navigated",
    "accept": "refinements kept",
    "diversity": "candidates differ",
    "energy_blind": "blind",
    "energy_navigated": "navigated",
    "jumped": "changed by the jump",
    "replaced": "replaced by the refinement",
}


def kinds(found: Found) -> dict[str, list[Stage]]:
    """The runs with curves, by kind, as their losses mean different things."""
    runs = [stage for stage in found.stages if stage.lines]
    return {
        "Teachers": [run for run in runs if run.stage == "teacher"],
        "Compasses": [run for run in runs if is_compass(run)],
        "Students and others": [run for run in runs if run.stage != "teacher" and not is_compass(run)],
    }


def training(group: str, runs: Sequence[Stage]) -> dict[str, Chart]:
    """The curves of some runs, a chart for each quantity."""
    out = {}
    for kind, column, title in CURVES:
        series = [
            {"name": run.name, "style": index % 8, "points": points}
            for index, run in enumerate(runs)
            if len(points := curve(run, kind, column)) > 1
        ]
        if series:
            out[f"{column}-{group.split()[0].lower()}"] = {
                "title": f"{title}: {group.lower()}",
                "caption": title,
                "x": {"label": "training steps", "scale": "linear"},
                "y": {"label": title, "scale": "log" if positive(series) else "linear"},
                "series": series,
                "dots": False,
            }
    return out


def navigation(run: Stage) -> dict[str, Chart]:
    """What the compass did while a student was trained."""
    out = {}
    sort = [kind for kind in ("train", "eval") if any(is_nav(line) for line in run.lines if line["kind"] == kind)]
    for title, columns, unit in NAVIGATION if sort else ():
        series = []
        for column, style in columns.items():
            points = max((curve(run, kind, f"nav/{column}") for kind in sort), key=len)
            if points:
                series.append({"name": WORDS[column], "style": style, "points": points})
        if series:
            out[f"nav-{unit}-{run.name}"] = {
                "title": f"{title}: {run.name}",
                "caption": title,
                "x": {"label": "training steps", "scale": "linear"},
                "y": {"label": unit, "scale": "linear", "format": "percent" if unit == "share" else ""},
                "series": series,
            }
    return out


def is_nav(line: dict[str, Any]) -> bool:
    return any(name.startswith("nav/") for name in line)


def is_compass(stage: Stage) -> bool:
    return stage.stage == "compass" or "compass" in stage.manifest


def curve(run: Stage, kind: str, column: str) -> list[dict[str, Any]]:
    """One column of a run's metrics, thinned to what can be seen."""
    points = [
        {"x": line["step"], "y": line[column]}
        for line in run.lines
        if line["kind"] == kind and finite(line.get(column))
    ]
    every = math.ceil(len(points) / MOST) or 1
    return [*points[:-1:every], *points[-1:]]


def positive(series: Sequence[dict[str, Any]]) -> bool:
    """May a logarithm be taken, and is it worth it?"""
    values = [point["y"] for one in series for point in one["points"]]
    return bool(min(values) > 0 and max(values) / min(values) > 5)


def a_series(method: str, found: Found, points: list[dict[str, Any]]) -> dict[str, Any]:
    return {"name": method, "style": style_of(method, found.methods), "points": points}


def finite(value: Any) -> bool:
    """Is it a number that can be drawn?"""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def numbers_of(charts: Iterable[Chart]) -> list[tuple[str, str, dict[str, Any]]]:
    """(title, series, point) of every point drawn, for the tables beside the figures."""
    return [(c["title"], s["name"], point) for c in charts for s in c["series"] for point in s["points"]]
