"""`tsdfm report threshold`: navigated students by τ and by what they started from."""

from __future__ import annotations

from pathlib import Path

from tsdfm.errors import UserError
from tsdfm.report.desk import Desk
from tsdfm.report.paper import PAPER_COLLAPSE, QUOTES, SCALE, THRESHOLD
from tsdfm.report.pivot import about, across, add_target, step_columns, valid_columns
from tsdfm.report.rows import Plain
from tsdfm.report.runs import TrainedRun
from tsdfm.report.settings import ThresholdSettings
from tsdfm.report.table import DAGGER, METHOD, ORIGIN, SOURCE, Column, Table


def run(settings: ThresholdSettings) -> Path:
    """Make the table; returns the path of its JSON."""
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
