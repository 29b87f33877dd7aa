"""`tsdfm report refinement`: what the token phase replaces and the safeguard accepts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tsdfm.report.desk import Desk
from tsdfm.report.paper import REFINEMENT, SCALE_UNJUDGED
from tsdfm.report.runs import Run
from tsdfm.report.settings import RefinementSettings
from tsdfm.report.table import Column, Table

PREFIX = "nav/"
COLUMNS = [
    Column("source", "source", "left"),
    Column("when", "when", "left"),
    Column("method", "method", "left"),
    Column("steps", "steps"),
    Column("accept", "accepted", format=".1%"),
    Column("replaced", "tokens replaced", format=".2f"),
    Column("replaced_share", "of the text", format=".1%"),
    Column("delta_e_accepted", "ΔE accepted", format="+.3f"),
    Column("delta_e_rejected", "ΔE rejected", format="+.3f"),
    Column("jumped", "tokens jumped", format=".2f"),
    Column("diversity", "candidates differ", format=".1%"),
    Column("spread", "energy spread", format=".3f"),
]


def run(settings: RefinementSettings) -> Path:
    """Make the table; returns the path of its JSON."""
    desk = Desk("refinement", settings)
    table = Table("refinement", "Token refinement: at generation by step count, and in training", list(COLUMNS))
    for model in desk.found.pick([settings.method], "train a student first"):
        for steps in settings.steps:
            guide = desk.guide(model, "sequence-to-token", settings.navigate, settings.compass)
            cell = desk.cell(model, steps, guide=guide)
            known = {"source": model.source, "when": "generation", "method": desk.label(model), "steps": steps}
            table.add(**known, **navigation(cell.navigation, cell.length))
    for model in desk.found.models:
        found = trained(model)
        if found:
            known = {"source": model.source, "when": "training", "method": desk.label(model)}
            table.add(**known, **navigation(found, model.manifest["model"]["length"]))
    for steps, (accept, tokens, share, down, up) in REFINEMENT.items():
        known = {"source": "uniform", "when": "generation", "method": f"fs-dfm ({SCALE_UNJUDGED})", "steps": steps}
        figures = {"accept": accept, "replaced": tokens, "replaced_share": share}
        table.add(**known, paper=True, **figures, delta_e_accepted=down, delta_e_rejected=up)
    table.notes.append(
        "tokens are means of a navigated step, over all positions of a text; training: the last line logged"
    )
    table.paper = {"label": "tab:refinement_stats", "scale": SCALE_UNJUDGED, "figures": REFINEMENT}
    return desk.finish(table)


def navigation(found: Mapping[str, float], length: int) -> dict[str, Any]:
    """What navigation did, by the names of the columns."""
    out: dict[str, Any] = {name.removeprefix(PREFIX): value for name, value in found.items() if name.startswith(PREFIX)}
    if "replaced" in out:
        out["replaced_share"] = out["replaced"] / length
    return out


def trained(model: Run) -> dict[str, float]:
    """The last statistics a navigated student logged, or none."""
    last: dict[str, float] = {}
    for line in metrics(model):
        if line.get("kind") == "train" and any(name.startswith(PREFIX) for name in line):
            last = {name: value for name, value in line.items() if name.startswith(PREFIX)}
    return last


def metrics(model: Run) -> list[dict[str, Any]]:
    """The lines of a run's `metrics.jsonl`; one that a kill cut short is left out."""
    path = model.path / "metrics.jsonl"
    out = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            out.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return out
