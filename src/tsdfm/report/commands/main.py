"""`tsdfm report main`: perplexity (entropy) of every method at every step count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tsdfm.report.desk import Desk, size
from tsdfm.report.measure import REAL
from tsdfm.report.paper import MAIN, SCALE
from tsdfm.report.pivot import across, pair, quoted, step_columns, valid_columns
from tsdfm.report.runs import Run
from tsdfm.report.settings import MainSettings
from tsdfm.report.table import Column, Table

NAMES = [Column("source", "source", "left"), Column("method", "method", "left"), Column("origin", "from", "left")]


def run(settings: MainSettings) -> Path:
    """Make the table; returns the path of its JSON."""
    desk = Desk("main", settings)
    desk.need_judge()
    desk.need_model()
    table = Table("main", "Perplexity (entropy in bits) by method and steps", [])
    counts = {1024} if any(model.source in MAIN for model in desk.found.models) else set()
    found: list[tuple[Run, list[dict[str, Any]]]] = []
    for model in desk.found.models:
        rows = [desk.row(model, steps) for steps in steps_of(settings, desk, model)]
        counts |= {row["steps"] for row in rows}
        table.add(**about(desk, model), **across(rows))
        found.append((model, rows))
    for source in dict.fromkeys(model.source for model in desk.found.models):
        for method, figures in MAIN.get(source, {}).items():
            table.add(source=source, method=method, origin=SCALE, **quoted(figures))
    table.columns = [*NAMES, *step_columns(counts)]
    add_target(desk, table)
    table.paper = {"label": "tab:main", "scale": SCALE, "figures": MAIN}
    path = desk.finish(table)
    if desk.measure.world:
        desk.finish(valid_table(table, counts - {1024}))
    for number, judge in enumerate([judge.fingerprint for judge in desk.bench.judges()][1:], 2):
        desk.finish(judge_table(desk, found, judge, f"main-judge-{number}"))
    return path


def judge_table(desk: Desk, found: list[tuple[Run, list[dict[str, Any]]]], judge: str, name: str) -> Table:
    """The same texts under another judge, as the paper has three."""
    table = Table(name, f"Perplexity (entropy in bits) under {judge}", [])
    for model, rows in found:
        table.add(**about(desk, model), **across({**row, **row["judges"][judge]} for row in rows))
    table.columns = [*NAMES, *step_columns({row["steps"] for _, rows in found for row in rows})]
    add_target(desk, table, judge)
    return table


def valid_table(table: Table, counts: set[int]) -> Table:
    """The share of valid stories, beside the main table."""
    columns = [*NAMES, *valid_columns(counts)]
    rows = [
        {**row, "marks": [mark.replace("at_", "valid_") for mark in row.get("marks", ())]}
        for row in table.rows
        if not row.get("paper")
    ]
    return Table("main-valid", "Valid stories by method and steps", columns, rows, about=dict(table.about))


def about(desk: Desk, model: Run) -> dict[str, Any]:
    """The fields that say which run a row is of."""
    return {
        "source": model.source,
        "method": desk.label(model),
        "run": model.name,
        "origin": f"ours, {size(model.parameters())}",
        "parameters": model.parameters(),
        "init": model.started_from(),
    }


def steps_of(settings: MainSettings, desk: Desk, model: Run) -> tuple[int, ...]:
    """The step counts of a run: as asked, as measured before if the texts are still there, or the paper's."""
    kept = desk.measured if (desk.found.home / "report" / "cells").is_dir() else {}
    steps = settings.steps or tuple(kept.get("steps", ())) or (4, 8, 16, 32)
    if model.method != "teacher":
        return steps
    if settings.teacher_steps or settings.steps:
        return settings.teacher_steps or steps
    return tuple(kept.get("teacher_steps") or steps) if kept else (*steps, 256)


def add_target(desk: Desk, table: Table, judge: str | None = None) -> None:
    """The row of held-out text, the same in every column, before what is quoted from the paper."""
    if desk.found.tokens is None:
        table.notes.append("no held-out text was found, so no row could be checked for collapse")
        return
    row = desk.target() | (desk.target()["judges"][judge] if judge else {})
    shown = {
        name: row.get(name)
        for name in ("ppl", "ppl_interval", "entropy_bits", "entropy_interval", "valid", "bigram_entropy_bits")
    }
    found: dict[str, Any] = {"source": "", "method": REAL, "origin": "", **shown}
    for column in table.columns:
        steps = column.name.removeprefix("at_")
        if steps.isdecimal() and steps != "1024":
            found |= {column.name: pair(row.get("ppl"), row["entropy_bits"]), f"valid_{steps}": row.get("valid")}
    ours = [i for i, other in enumerate(table.rows) if not other.get("paper")]
    table.rows.insert(ours[-1] + 1 if ours else 0, found)
    table.about["target"] = {name: value for name, value in row.items() if name != "judges"}
