"""`tsdfm report policy`: generation without guidance and with each policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tsdfm.report.commands.main import add_target
from tsdfm.report.desk import Desk
from tsdfm.report.guided import blind_line, guided_columns, guided_row, note_blind
from tsdfm.report.paper import POLICY, SCALE
from tsdfm.report.settings import PolicySettings
from tsdfm.report.table import Column, Table

POLICIES = {"none": "blind", "sequence": "sequence", "token": "token", "sequence-to-token": "sequence-to-token"}


def run(settings: PolicySettings) -> Path:
    """Make the table; returns the path of its JSON."""
    desk = Desk("policy", settings)
    desk.need_judge()
    first = [Column("source", "source", "left"), Column("method", "method", "left"), Column("steps", "steps")]
    columns = [*first, Column("policy", "policy", "left"), *guided_columns(desk, settings.temperatures)]
    table = Table("policy", "Navigation policies at generation, on the same student", columns)
    for model in desk.found.pick([settings.method], "train a student first"):
        guides = {
            name: desk.guide(model, policy, settings.navigate, settings.compass) for name, policy in POLICIES.items()
        }
        for steps in settings.steps:
            blind = blind_line(desk, model, steps, settings.temperatures)
            for name, guide in guides.items():
                table.add(**guided_row(desk, model, steps, guide, blind), method=desk.label(model), policy=name)
    table.rows += paper_rows(settings.steps)
    note_blind(table, settings.temperatures)
    add_target(desk, table)
    table.paper = {"label": "tab:policy_comparison", "scale": SCALE, "figures": POLICY}
    return desk.finish(table)


def paper_rows(steps: tuple[int, ...]) -> list[dict[str, Any]]:
    """The paper's rows of these step counts."""
    out = []
    for at, policies in POLICY.items():
        for name, (entropy, ppl, l2, l3) in policies.items() if at in steps else ():
            row = {"source": "uniform", "method": "fs-dfm", "origin": SCALE, "steps": at, "policy": name}
            out.append({**row, "paper": True, "ppl": ppl, "entropy_bits": entropy, "llama2": l2, "llama3": l3})
    return out
