"""`tsdfm report refinement`: what the token phase replaces and the safeguard accepts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tsdfm.report.desk import Desk
from tsdfm.report.paper import QUOTES, REFINEMENT, SCALE_UNJUDGED
from tsdfm.report.rows import Plain
from tsdfm.report.settings import RefinementSettings
from tsdfm.report.table import METHOD, SOURCE, STEPS, Column, Table

PREFIX = "nav/"
COLUMNS = [
    SOURCE,
    Column("when", "when", "left"),
    METHOD,
    STEPS,
    Column("accept", "accepted", format=".1%"),
    Column("replaced", "tokens replaced", format=".2f"),
    Column("replaced_share", "of the text", format=".1%"),
    Column("delta_e_accepted", "ΔE accepted", format="+.3f"),
    Column("delta_e_rejected", "ΔE rejected", format="+.3f"),
    Column("jumped", "tokens jumped", format=".2f"),
    Column("diversity", "candidates differ", format=".1%"),
    Column("spread", "energy spread", format=".3f"),
]
QUOTED = ("accept", "replaced", "replaced_share", "delta_e_accepted", "delta_e_rejected")


def run(settings: RefinementSettings) -> Path:
    """Make the table; returns the path of its JSON."""
    desk = Desk("refinement", settings)
    title = "Token refinement: at generation by step count, and in training"
    table = Table("refinement", title, COLUMNS, quote=QUOTES["refinement"])
    for model in desk.runs.pick(settings.method):
        guide = desk.guide(model, "sequence-to-token", settings.navigate, settings.compass)
        for steps in settings.steps:
            cell = desk.cell(model, steps, guide=guide)
            known = {"source": model.source, "when": "generation", "method": desk.runs.label(model), "steps": steps}
            table.add(**known, **navigation(cell.navigation, cell.length))
    for model in desk.runs.models:
        lines = [line for line in model.log() if line["kind"] == "train" and any(n.startswith(PREFIX) for n in line)]
        if lines:
            known = {"source": model.source, "when": "training", "method": desk.runs.label(model)}
            table.add(**known, **navigation(lines[-1], model.manifest["model"]["length"]))
    for steps, figures in REFINEMENT.items():
        known = {"source": "uniform", "when": "generation", "method": f"fs-dfm ({SCALE_UNJUDGED})", "steps": steps}
        table.add(**known, paper=True, **dict(zip(QUOTED, figures, strict=True)))
    table.notes.append(
        "tokens are means of a navigated step, over all positions of a text; training: the last line logged"
    )
    return desk.finish(table)


def navigation(found: Mapping[str, float], length: int) -> Plain:
    """What navigation did, by the names of the columns."""
    out: Plain = {name.removeprefix(PREFIX): value for name, value in found.items() if name.startswith(PREFIX)}
    if "replaced" in out:
        out["replaced_share"] = out["replaced"] / length
    return out
