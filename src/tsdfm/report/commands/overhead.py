"""`tsdfm report overhead`: the time of a training step of every student, relative to FS-DFM."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from statistics import median

from tsdfm.errors import UserError
from tsdfm.report.desk import Desk
from tsdfm.report.page.gather import has_lists
from tsdfm.report.rows import Plain, finite
from tsdfm.report.runs import TrainedRun
from tsdfm.report.settings import OverheadSettings
from tsdfm.report.table import METHOD, ORIGIN, SOURCE, Column, Table
from tsdfm.store.files import read_json

COLUMNS = [
    SOURCE,
    METHOD,
    Column("tau", "τ", format="g"),
    ORIGIN,
    Column("batch", "batch"),
    Column("ms", "ms / step", format=",.1f"),
    Column("ratio", "vs FS-DFM", format=".2f"),
    Column("steps_timed", "steps timed"),
    Column("torch", "torch", "left"),
]


def run(desk: Desk, settings: OverheadSettings) -> Table:
    """Make the table."""
    table = desk.table("Time of a training step", COLUMNS)
    students = [model for model in desk.runs.models if not model.many_step]
    if not students and settings.benchmarks is None:
        raise UserError(f"no student in {desk.runs.home}: train one, or give --benchmarks")
    timed = [(model, step_time(model)) for model in students]
    base = {model.source: ms for model, (ms, _) in reversed(timed) if model.control and ms is not None}
    for model, (ms, count) in timed:
        first = base.get(model.source)
        table.add(
            **desk.about(model),
            tau=(model.navigate or {}).get("tau"),
            batch=model.settings.get("loop", {}).get("batch"),
            ms=ms,
            ratio=ms / first if ms is not None and first else None,
            steps_timed=count,
            torch=model.manifest.get("versions", {}).get("torch"),
        )
    if settings.benchmarks is not None:
        table.rows += benchmark_rows(settings.benchmarks)
    table.rows += desk.quote.rows()
    table.notes.append(
        "ms / step: median over the intervals of metrics.jsonl, without the first, on the run's own machine"
    )
    if any(base.get(model.source) is None for model in students):
        table.notes.append("no FS-DFM run of a source: its ratios are left out")
    table.about = {"hardware": None}  # a run's manifest does not name its machine; this one need not be it
    return table


def step_time(model: TrainedRun) -> tuple[float | None, int]:
    """Milliseconds of a step (the median over logged intervals), and how many steps were timed.

    A line of `metrics.jsonl` has the seconds since the one before; the first interval holds warm-up, so it counts
    only where there is no other.
    """
    lines = [line for line in model.lines if line["kind"] == "train" and line.get("seconds")]
    spans = [(steps_in(after, before), after["seconds"]) for before, after in pairwise(lines)]
    spans = [(steps, seconds) for steps, seconds in spans if steps > 0]
    if not spans and lines:
        spans = [(lines[0]["step"], lines[0]["seconds"])]
    if not spans:
        return None, 0
    return 1000 * median(seconds / steps for steps, seconds in spans), sum(steps for steps, _ in spans)


def steps_in(line: Plain, before: Plain) -> int:
    """The steps that a line's seconds were spent on: fewer than since the line before where a run was resumed."""
    whole = int(line["step"] - before["step"])
    tokens = (line.get("tokens") or 0) - (before.get("tokens") or 0)
    if tokens <= 0 or not line.get("tokens_per_s"):
        return whole
    spent: float = line["tokens_per_s"] * line["seconds"] / tokens
    return min(whole, round(whole * spent))


def benchmark_rows(path: Path) -> list[Plain]:
    """The rows of a `student.json` of `python -m benchmarks`: steps timed in turns, on the machine the file names."""
    found = read_json(path)
    origin = f"benchmark, {found.get('hardware')}"
    rows = [
        {"method": row["step"], "origin": origin, "batch": row.get("batch"), "ms": row["ms"], "ratio": row["to fs-dfm"]}
        for row in (found["rows"] if has_lists(found, "rows") else ())
        if isinstance(row, dict) and isinstance(row.get("step"), str)
        if all(finite(row.get(name)) for name in ("ms", "to fs-dfm"))
    ]
    if not rows:
        raise UserError(f"{path} times no student's step: give the student.json of `python -m benchmarks`")
    return rows
