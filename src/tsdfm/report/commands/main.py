"""`tsdfm report main`: perplexity (entropy) of every method at every step count."""

from __future__ import annotations

from pathlib import Path

from tsdfm.report.desk import Desk
from tsdfm.report.paper import MAIN, QUOTES, SCALE
from tsdfm.report.pivot import MANY, about, across, add_target, quoted, step_columns, valid_columns
from tsdfm.report.runs import TrainedRun
from tsdfm.report.settings import MainSettings
from tsdfm.report.table import METHOD, ORIGIN, SOURCE, Table

NAMES = [SOURCE, METHOD, ORIGIN]


def run(settings: MainSettings) -> Path:
    """Make the table; returns the path of its JSON."""
    desk = Desk("main", settings, judged=True, modelled=True)
    found = [(run, [desk.row(run, at) for at in steps_of(settings, desk, run)]) for run in desk.runs.models]
    counts = {row.steps for _, rows in found for row in rows if row.steps is not None}
    table = Table("main", "Perplexity (entropy in bits) by method and steps", [], quote=QUOTES["main"])
    for model, rows in found:
        table.add(**about(desk, model), **across(rows))
    for source in dict.fromkeys(model.source for model in desk.runs.models):
        for method, figures in MAIN.get(source, {}).items():
            table.add(source=source, method=method, origin=SCALE, **quoted(figures))
    many = {MANY} if any(model.source in MAIN for model in desk.runs.models) else set()
    table.columns = [*NAMES, *step_columns(counts | many)]
    add_target(desk, table)
    path = desk.finish(table)
    if desk.measure.world:
        desk.finish(valid_table(table, counts), beside=True)
    for number, judge in enumerate(desk.bench.judge_names()[1:], 2):
        other = Table(f"main-judge-{number}", f"Perplexity (entropy in bits) under {judge}", [])
        for model, rows in found:
            other.add(**about(desk, model), **across(row.under(judge) for row in rows))
        other.columns = [*NAMES, *step_columns(counts)]
        add_target(desk, other, judge)
        desk.finish(other, beside=True)
    return path


def valid_table(table: Table, counts: set[int]) -> Table:
    """The share of valid stories, beside the main table."""
    rows = [
        {**row, "marks": [mark.replace("at_", "valid_") for mark in row.get("marks", ())]}
        for row in table.rows
        if not row.get("paper")
    ]
    columns = [*NAMES, *valid_columns(counts)]
    return Table("main-valid", "Valid stories by method and steps", columns, rows, about=dict(table.about))


def steps_of(settings: MainSettings, desk: Desk, run: TrainedRun) -> tuple[int, ...]:
    """The step counts of a run: as asked, as measured before if the texts are still there, or the paper's."""
    kept = desk.measured if (desk.runs.home / "report" / "cells").is_dir() else {}
    steps = settings.steps or tuple(kept.get("steps", ())) or (4, 8, 16, 32)
    if not run.many_step:
        return steps
    if settings.teacher_steps or settings.steps:
        return settings.teacher_steps or steps
    return tuple(kept.get("teacher_steps") or steps) if kept else (*steps, 256)
