"""`tsdfm report scaling`: runs of several sizes, one row each."""

from __future__ import annotations

from pathlib import Path

from tsdfm.report.commands.main import about, add_target
from tsdfm.report.desk import Desk
from tsdfm.report.paper import MAIN, SCALE, SCALE_LARGE, SCALING
from tsdfm.report.pivot import across, quoted, step_columns
from tsdfm.report.settings import ScalingSettings
from tsdfm.report.table import Column, Table

SMALL = {"teacher": "teacher", "fs-dfm": "fs-dfm", "ts-dfm": "ts-dfm (FS-DFM init)"}


def run(settings: ScalingSettings) -> Path:
    """Make the table; returns the path of its JSON."""
    desk = Desk("scaling", settings)
    desk.need_judge()
    table = Table("scaling", "Scaling: perplexity (entropy in bits) by size and steps", [])
    sizes = {model.path: model.parameters() for model in desk.found.models}
    for model in sorted(desk.found.models, key=lambda m: sizes[m.path]):  # stable: equal sizes keep their order
        table.add(**about(desk, model), **across(desk.row(model, steps) for steps in settings.steps))
    for method, small in SMALL.items():
        known = {"source": "uniform", "method": method}
        table.add(**known, parameters=170_000_000, origin=SCALE, **quoted(MAIN["uniform"][small]))
        table.add(**known, parameters=1_300_000_000, origin=SCALE_LARGE, **quoted(SCALING[method]))
    if len(set(sizes.values())) < 2:
        table.notes.append("all runs have one size: give folders of runs of other sizes too")
    table.columns = [
        Column("parameters", "parameters", format=",d"),
        Column("source", "source", "left"),
        Column("method", "method", "left"),
        Column("origin", "from", "left"),
        *step_columns({*settings.steps, 1024}),
    ]
    add_target(desk, table)
    table.paper = {"label": "tab:scaling_1_3b", "scale": SCALE_LARGE, "figures": SCALING}
    return desk.finish(table)
