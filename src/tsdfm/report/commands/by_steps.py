"""Tables with a row a model and a column a step count, perplexity (entropy): main, scaling, threshold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tsdfm.errors import UserError
from tsdfm.report.desk import Desk
from tsdfm.report.paper import PAPER_COLLAPSE, QUOTES
from tsdfm.report.rows import Plain, Row
from tsdfm.report.runs import TrainedRun
from tsdfm.report.settings import MainSettings, ScalingSettings, ThresholdSettings
from tsdfm.report.summary import pair
from tsdfm.report.table import DAGGER, METHOD, ORIGIN, SOURCE, Column, Table

NAMES = [SOURCE, METHOD, ORIGIN]
SMALL = {"teacher": "teacher", "fs-dfm": "fs-dfm", "ts-dfm": "ts-dfm (FS-DFM init)"}
KEPT = ("ppl", "ppl_interval", "entropy_bits", "entropy_interval", "valid", "collapsed", "nfe", "samples")
FIGURES = ("ppl", "entropy_bits", "llama2", "llama3")
MANY = 1024
"""The step count that only the paper's many-step models have: held-out text does not stand in its column."""


def main(desk: Desk, settings: MainSettings) -> Table:
    """`tsdfm report main`: every method at every step count, under every judge."""
    found = {run: desk.rows(run, steps_of(settings, desk, run)) for run in desk.runs.models}
    counts = {row.steps for rows in found.values() for row in rows if row.steps is not None}
    quoted = desk.quote.rows(source={run.source for run in found})
    columns = [*NAMES, *step_columns(counts | ({MANY} if quoted else set()))]
    table = desk.table("Perplexity (entropy in bits) by method and steps", columns)
    for run, rows in found.items():
        add_run(desk, table, run, rows)
    table.rows += by_steps(quoted)
    add_target(desk, table)
    if desk.asked.world:
        ours = [row for row in table.rows if not row.get("paper")]
        ours = [{**row, "marks": [mark.replace("at_", "valid_") for mark in row.get("marks", ())]} for row in ours]
        columns = [*NAMES, *valid_columns(counts)]
        valid = Table("main-valid", "Valid stories by method and steps", columns, ours, about=dict(table.about))
        desk.finish(valid, beside=True)
    for number, judge in enumerate(desk.judge_names()[1:], 2):
        title = f"Perplexity (entropy in bits) under {judge}"
        other = Table(f"main-judge-{number}", title, [*NAMES, *step_columns(counts)])
        for run, rows in found.items():
            add_run(desk, other, run, [row.under(judge) for row in rows])
        add_target(desk, other, judge)
        desk.finish(other, beside=True)
    return table


def steps_of(settings: MainSettings, desk: Desk, run: TrainedRun) -> tuple[int, ...]:
    """The step counts of a run: as asked, as measured before if the texts are still there, or the paper's."""
    kept = desk.measured if (desk.runs.home / "report" / "cells").is_dir() else {}
    few = settings.steps or tuple(kept.get("steps", ())) or (4, 8, 16, 32)
    many = tuple(kept.get("teacher_steps") or few) if kept else (*few, 256)
    return (settings.teacher_steps or settings.steps or many) if run.many_step else few


def scaling(desk: Desk, settings: ScalingSettings) -> Table:
    """`tsdfm report scaling`: runs of several sizes."""
    columns = [Column("parameters", "parameters", format=",d"), *NAMES, *step_columns({*settings.steps, MANY})]
    table = desk.table("Scaling: perplexity (entropy in bits) by size and steps", columns)
    for run in sorted(desk.runs.models, key=TrainedRun.parameters):  # stable: equal sizes keep their order
        add_run(desk, table, run, desk.rows(run, settings.steps))
    if len({row["parameters"] for row in table.rows}) < 2:
        table.notes.append("all runs have one size: give folders of runs of other sizes too")
    small = {row["method"]: row for row in by_steps(QUOTES["main"].rows(source=["uniform"]))}
    for large in by_steps(desk.quote.rows()):
        method = large["method"]
        table.add(**{**small[SMALL[method]], "method": method, "parameters": 170_000_000})
        table.add(**large, parameters=1_300_000_000)
    add_target(desk, table)
    return table


def threshold(desk: Desk, settings: ThresholdSettings) -> Table:
    """`tsdfm report threshold`: navigated students by τ and by what they started from."""
    navigated = [run for run in desk.runs.models if run.navigate and run.navigate.get("selector") != "random"]
    if not navigated:
        raise UserError(f"no student in {desk.runs.home} was trained with navigated midpoints: train one for each τ")
    columns = [SOURCE, Column("tau", "τ", format="g"), Column("init", "init", "left"), METHOD, ORIGIN]
    columns += step_columns(settings.steps) + (valid_columns(settings.steps) if desk.asked.world else [])
    table = desk.table("Effect of the time threshold τ: perplexity (entropy in bits)", columns)
    tau_of = {run: float((run.navigate or {})["tau"]) for run in navigated}
    for run in sorted(navigated, key=lambda run: (run.source != "uniform", tau_of[run], str(run.started_from()))):
        add_run(desk, table, run, desk.rows(run, settings.steps), tau=tau_of[run])
    table.rows += by_steps(desk.quote.rows(source={run.source for run in navigated}))
    if len(set(tau_of.values())) < 2:
        table.notes.append("one τ only: train students with other --navigate.tau into the same folder to compare them")
    add_target(desk, table)
    table.notes.append(f"{DAGGER} in the paper's rows: entropy below {PAPER_COLLAPSE}, which the paper stars")
    return table


def add_run(desk: Desk, table: Table, run: TrainedRun, rows: Iterable[Row], **more: Any) -> None:
    """Rows of one run at several step counts as one row, with the run's size and what it started from."""
    out: Plain = {"parameters": run.parameters(), "init": run.started_from(), "marks": []}
    for row in rows:
        plain = row.plain()
        out[f"at_{row.steps}"] = pair(row)
        out |= {f"{name}_{row.steps}": plain[name] for name in KEPT if name in plain}
        out["marks"] += [f"at_{row.steps}"] if row.collapsed else []
    table.add(**desk.about(run), **out, **more)


def by_steps(quoted: Iterable[Plain]) -> list[Plain]:
    """The paper's rows that differ by their steps alone as one: entropy and perplexities as the fields of each."""
    out: dict[tuple[Any, ...], Plain] = {}
    for row in quoted:
        at, figures = row.pop("steps"), {name: row.pop(name) for name in FIGURES if name in row}
        same = out.setdefault(tuple(row.values()), {**row, "marks": []})
        same |= {f"at_{at}": f"{figures['ppl']} ({figures['entropy_bits']})"}
        same |= {f"{name}_{at}": figure for name, figure in figures.items()}
        same["marks"] += [f"at_{at}"] if figures["entropy_bits"] < PAPER_COLLAPSE else []
    return list(out.values())


def step_columns(steps: Iterable[int]) -> list[Column]:
    """Perplexity and entropy, a column for each step count."""
    return [Column(f"at_{at}", f"{at} steps") for at in sorted(set(steps))]


def valid_columns(steps: Iterable[int]) -> list[Column]:
    """The share of valid stories, a column for each step count."""
    return [Column(f"valid_{at}", f"valid, {at} steps", format=".3f") for at in sorted(set(steps))]


def add_target(desk: Desk, table: Table, judge: str | None = None) -> None:
    """Held-out text, the same in every column of ours."""
    more, row = Plain(), desk.real(judge)
    for at in [column.name.removeprefix("at_") for column in table.columns]:
        if row and at.isdecimal() and at != str(MANY):
            more |= {f"at_{at}": pair(row), f"valid_{at}": row.valid.value if row.valid else None}
    desk.add_target(table, judge, **more)
