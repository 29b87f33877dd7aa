"""`tsdfm report scaling`: runs of several sizes, one row each."""

from __future__ import annotations

from pathlib import Path

from tsdfm.report.desk import Desk
from tsdfm.report.paper import MAIN, QUOTES, SCALE, SCALE_LARGE, SCALING
from tsdfm.report.pivot import MANY, about, across, add_target, quoted, step_columns
from tsdfm.report.settings import ScalingSettings
from tsdfm.report.table import METHOD, ORIGIN, SOURCE, Column, Table

SMALL = {"teacher": "teacher", "fs-dfm": "fs-dfm", "ts-dfm": "ts-dfm (FS-DFM init)"}


def run(settings: ScalingSettings) -> Path:
    """Make the table; returns the path of its JSON."""
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
