"""`tsdfm report frontier`: perplexity against entropy, and perplexity at matched entropy relative to a control."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tsdfm.errors import UserError
from tsdfm.report.commands.main import add_target
from tsdfm.report.desk import Desk
from tsdfm.report.frontier import Comparison, Sweep, compare, mean_entropy, pooled_entropy
from tsdfm.report.frontier_figure import frontier_figure
from tsdfm.report.metrics import entropy_bits
from tsdfm.report.runs import Run
from tsdfm.report.settings import FrontierSettings
from tsdfm.report.table import Column, Table, write_text

KEPT = (
    "source",
    "steps",
    "nfe",
    "temperature",
    "samples",
    "ppl",
    "ppl_interval",
    "ppl_corpus",
    "ppl_geometric",
    "entropy_bits",
    "entropy_interval",
    "entropy_nats",
    "bigram_entropy_bits",
    "valid",
    "valid_interval",
    "collapsed",
    "checkpoint",
)
COLUMNS = [
    Column("source", "source", "left"),
    Column("method", "method", "left"),
    Column("steps", "steps"),
    Column("ppl", "ppl, T = 1", format=".2f"),
    Column("entropy_bits", "entropy, T = 1", format=".2f"),
    Column("at_own", "ppl / control at that entropy"),
    Column("over", "mean over shared entropies"),
    Column("bigram_entropy_bits", "bigram entropy", format=".2f"),
    Column("bigram_at_own", "ppl / control at that"),
    Column("bigram_over", "mean over shared"),
]


@dataclass(frozen=True)
class Line:
    """A method's sweep at one step count."""

    model: Run
    steps: int
    rows: list[dict[str, Any]]
    by_token: list[Sweep]
    by_bigram: list[Sweep]


def run(settings: FrontierSettings) -> Path:
    """Make the frontier; returns the path of its JSON."""
    desk = Desk("frontier", settings)
    desk.need_judge()
    lines = [sweep(desk, model, steps, settings) for model in desk.found.models for steps in settings.steps]
    table = Table("frontier", "Perplexity at matched entropy, relative to the control", list(COLUMNS))
    for line in lines:
        control = control_for(line, lines, settings.control)
        table.add(**row_for(desk, line, control, settings))
    table.notes += notes_on(lines, settings)
    if not lines:
        raise UserError(f"no model in {desk.found.home}: train one first")
    add_target(desk, table)
    target = table.about.pop("target", None)
    if target and target["samples"] != desk.measure.samples:
        table.notes.append(f"held-out text is {target['samples']} texts only: a pool of fewer texts has less entropy")
    table.about["points"] = [point(desk, line, row) for line in lines for row in line.rows]
    table.about["target"] = {name: target.get(name) for name in (*KEPT, "method")} if target else None
    table.about |= {"control": settings.control, "definition": settings.definition}
    table.about["temperatures"] = list(settings.temperatures)
    path = desk.finish(table)
    draw(desk.report, table, "ppl_geometric" if settings.definition == "geometric" else "ppl")
    return path


def draw(report: Path, table: Table, ppl: str) -> None:
    """The figures: by token histogram, and by pooled bigrams."""
    found = table.plain()
    for name, entropy, label in (
        ("frontier", "entropy_bits", "entropy of the token histogram (bits)"),
        ("frontier-bigrams", "bigram_entropy_bits", "entropy of pooled bigrams (bits)"),
    ):
        write_text(report / f"{name}.svg", frontier_figure(found, entropy, label, ppl))


def sweep(desk: Desk, model: Run, steps: int, settings: FrontierSettings) -> Line:
    """Sample and judge a run at every temperature."""
    rows, by_token, by_bigram = list[dict[str, Any]](), list[Sweep](), list[Sweep]()
    geometric = settings.definition == "geometric"
    for warmth in settings.temperatures:
        cell = desk.cell(model, steps, temperature=warmth)
        rows.append(desk.row(model, steps, temperature=warmth))
        ppl = desk.bench.perplexities(cell)
        written = cell.rows()
        own = torch.tensor(entropy_bits(written), dtype=torch.float64)
        by_token.append(Sweep(warmth, ppl, geometric, mean_entropy(own)))
        by_bigram.append(Sweep(warmth, ppl, geometric, pooled_entropy(written)))
    return Line(model, steps, rows, by_token, by_bigram)


def control_for(line: Line, lines: Sequence[Line], name: str) -> Line | None:
    """The control of the same source and step count: the method of that name, else FS-DFM, else the teacher."""
    same = [x for x in lines if (x.model.source, x.steps) == (line.model.source, line.steps)]
    for method in (name, "fs-dfm", "teacher"):
        for other in same:
            if other.model.method == method:
                return other
    return None


def row_for(desk: Desk, line: Line, control: Line | None, settings: FrontierSettings) -> dict[str, Any]:
    """A method at one step count: its figures at T = 1 and its ratios to the control."""
    own = next((row for row in line.rows if row["temperature"] == 1.0), None)
    row: dict[str, Any] = {"source": line.model.source, "method": desk.label(line.model), "steps": line.steps}
    row["marks"] = [] if own is None or not own["collapsed"] else ["ppl", "entropy_bits"]
    if own is not None:
        row |= {name: own.get(name) for name in ("ppl", "ppl_interval", "entropy_bits", "bigram_entropy_bits")}
        if settings.definition == "geometric":
            row |= {"ppl": own["ppl_geometric"], "ppl_interval": own["ppl_geometric_interval"]}
    if control is None or control is line:
        return {**row, "control": control is line, "at_own": "control" if control is line else None}
    row["control_method"] = control.model.method
    for prefix, mine, theirs in (("", line.by_token, control.by_token), ("bigram_", line.by_bigram, control.by_bigram)):
        found = compare(mine, theirs, draws=settings.draws, seed=desk.measure.seed)
        row |= {f"{prefix}{name}": value for name, value in shown(found).items()}
    return row


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


def point(desk: Desk, line: Line, row: dict[str, Any]) -> dict[str, Any]:
    """A point of the figure."""
    return {"method": desk.label(line.model), "run": line.model.name, **{n: row[n] for n in KEPT if n in row}}


def notes_on(lines: Sequence[Line], settings: FrontierSettings) -> list[str]:
    """What the ratios mean, and which control was used where the chosen one is missing."""
    warm = ", ".join(f"{t:g}" for t in settings.temperatures)
    notes = [
        f"temperatures {warm}; log-perplexity is linear in entropy between neighbouring points, and unknown beyond",
        "a ratio below 1 is better than the control; outside: the control has no text of that entropy",
    ]
    used = {c.model.method for line in lines if (c := control_for(line, lines, settings.control)) is not None}
    if settings.definition == "geometric":
        notes.append("perplexity here is exp of the mean over texts of their mean NLL; the paper's is in the points")
    if used - {settings.control}:
        notes.append(f"no run is called {settings.control}: the control is {', '.join(sorted(used))}")
    return notes
