"""Tables with a row a model and a column a step count, perplexity (entropy): main, scaling, threshold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from tsdfm.errors import UserError
from tsdfm.report.desk import Desk
from tsdfm.report.paper import MAIN, PAPER_COLLAPSE, QUOTES, SCALE, SCALE_LARGE, SCALING, THRESHOLD, Figures
from tsdfm.report.rows import Plain, Row
from tsdfm.report.runs import TrainedRun
from tsdfm.report.settings import MainSettings, ScalingSettings, ThresholdSettings
from tsdfm.report.table import DAGGER, METHOD, ORIGIN, SOURCE, Column, Table

NAMES = [SOURCE, METHOD, ORIGIN]
SMALL = {"teacher": "teacher", "fs-dfm": "fs-dfm", "ts-dfm": "ts-dfm (FS-DFM init)"}
KEPT = ("ppl", "ppl_interval", "entropy_bits", "entropy_interval", "valid", "collapsed", "nfe", "samples")
MANY = 1024
"""The step count that only the paper's many-step models have: held-out text does not stand in its column."""


def main(settings: MainSettings) -> Path:
    """`tsdfm report main`: every method at every step count, under every judge; returns the path of its JSON."""
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


def scaling(settings: ScalingSettings) -> Path:
    """`tsdfm report scaling`: runs of several sizes; returns the path of its JSON."""
    desk = Desk("scaling", settings, judged=True)
    columns = [Column("parameters", "parameters", format=",d"), SOURCE, METHOD, ORIGIN]
    columns += step_columns({*settings.steps, MANY})
    title = "Scaling: perplexity (entropy in bits) by size and steps"
    table = Table("scaling", title, columns, quote=QUOTES["scaling"])
    sizes = {model.path: model.parameters() for model in desk.runs.models}
    for model in sorted(desk.runs.models, key=lambda m: sizes[m.path]):  # stable: equal sizes keep their order
        table.add(**about(desk, model), **across(desk.row(model, steps) for steps in settings.steps))
    for method, small in SMALL.items():
        known = {"source": "uniform", "method": method}
        table.add(**known, parameters=170_000_000, origin=SCALE, **quoted(MAIN["uniform"][small]))
        table.add(**known, parameters=1_300_000_000, origin=SCALE_LARGE, **quoted(SCALING[method]))
    if len(set(sizes.values())) < 2:
        table.notes.append("all runs have one size: give folders of runs of other sizes too")
    add_target(desk, table)
    return desk.finish(table)


def threshold(settings: ThresholdSettings) -> Path:
    """`tsdfm report threshold`: navigated students by τ and by what they started from; returns the path of its JSON."""
    desk = Desk("threshold", settings, judged=True)
    models = [model for model in desk.runs.models if is_navigated(model)]
    if not models:
        raise UserError(f"no student in {desk.runs.home} was trained with navigated midpoints: train one for each τ")
    models.sort(key=lambda model: (model.source != "uniform", tau_of(model), str(model.started_from())))
    columns = [SOURCE, Column("tau", "τ", format="g"), Column("init", "init", "left"), METHOD, ORIGIN]
    columns += step_columns(settings.steps) + (valid_columns(settings.steps) if desk.measure.world else [])
    title = "Effect of the time threshold τ: perplexity (entropy in bits)"
    table = Table("threshold", title, columns, quote=QUOTES["threshold"])
    for model in models:
        rows = [desk.row(model, steps) for steps in settings.steps]
        table.add(**about(desk, model), tau=tau_of(model), **across(rows))
    for source in dict.fromkeys(model.source for model in models):
        table.rows += paper_rows(source)
    if len({tau_of(model) for model in models}) < 2:
        table.notes.append("one τ only: train students with other --navigate.tau into the same folder to compare them")
    add_target(desk, table)
    table.notes.append(f"{DAGGER} in the paper's rows: entropy below {PAPER_COLLAPSE}, which the paper stars")
    return desk.finish(table)


def is_navigated(model: TrainedRun) -> bool:
    """Was the student trained with a policy that a compass steers? The random control has no use for τ's table."""
    return not model.blind and model.settings.get("navigate", {}).get("selector") != "random"


def tau_of(model: TrainedRun) -> float:
    """τ of a student."""
    return float(model.settings["navigate"]["tau"])


def paper_rows(source: str) -> list[Plain]:
    """The paper's rows of one source; it stars entropies below 6.5, which are marked as collapsed here."""
    out = []
    for init, by_steps in THRESHOLD.get(source, {}).items():
        for tau in (0.02, 0.2, 0.4):
            row: Plain = {"source": source, "tau": tau, "init": init, "method": "ts-dfm", "origin": SCALE}
            row |= {"paper": True, "marks": []}
            for steps, by_tau in by_steps.items():
                entropy, ppl = by_tau[tau]
                row |= {f"at_{steps}": f"{ppl} ({entropy})", f"ppl_{steps}": ppl, f"entropy_bits_{steps}": entropy}
                row["marks"] += [f"at_{steps}"] if entropy < PAPER_COLLAPSE else []
            out.append(row)
    return out


def pair(row: Row) -> str:
    """`56.1 (7.20)`, with as many digits of a perplexity as matter."""
    ppl = row.ppl.value if row.ppl else None
    shown = "–" if ppl is None else f"{ppl:.2f}" if ppl < 10 else f"{ppl:.1f}"
    return f"{shown} ({row.entropy:.2f})"


def across(rows: Iterable[Row]) -> Plain:
    """Rows of one run at several step counts as the fields of one row."""
    out: Plain = {"marks": []}
    for row in rows:
        plain = row.plain()
        out[f"at_{row.steps}"] = pair(row)
        out |= {f"{name}_{row.steps}": plain[name] for name in KEPT if name in plain}
        if row.collapsed:
            out["marks"].append(f"at_{row.steps}")
    return out


def quoted(figures: Mapping[int, Figures]) -> Plain:
    """The paper's figures of one method as the fields of one row."""
    out: Plain = {"paper": True}
    for at, (entropy, g2, l2, l3) in figures.items():
        out |= {f"at_{at}": f"{g2} ({entropy})", f"ppl_{at}": g2, f"entropy_bits_{at}": entropy}
        out |= {f"llama2_{at}": l2, f"llama3_{at}": l3}
    return out


def step_columns(steps: Iterable[int]) -> list[Column]:
    """Perplexity and entropy, a column for each step count."""
    return [Column(f"at_{at}", f"{at} steps") for at in sorted(set(steps))]


def valid_columns(steps: Iterable[int]) -> list[Column]:
    """The share of valid stories, a column for each step count."""
    return [Column(f"valid_{at}", f"valid, {at} steps", format=".3f") for at in sorted(set(steps))]


def about(desk: Desk, run: TrainedRun) -> Plain:
    """The fields that say which run a row is of, its size and what it started from."""
    return {**desk.about(run), "parameters": run.parameters(), "init": run.started_from()}


def add_target(desk: Desk, table: Table, judge: str | None = None) -> None:
    """Held-out text, the same in every column of ours."""
    more: Plain = {}
    if desk.runs.tokens is not None:
        row = desk.target().under(judge) if judge else desk.target()
        steps = [column.name.removeprefix("at_") for column in table.columns]
        for at in (at for at in steps if at.isdecimal() and at != str(MANY)):
            more |= {f"at_{at}": pair(row), f"valid_{at}": row.valid.value if row.valid else None}
    desk.add_target(table, judge, **more)
