"""`tsdfm report policy`: generation without guidance and with each policy."""

from __future__ import annotations

from pathlib import Path

from tsdfm.report.desk import Desk
from tsdfm.report.guided import blind_line, guided_row, guided_table, quoted_row
from tsdfm.report.paper import POLICY, QUOTES
from tsdfm.report.settings import PolicySettings
from tsdfm.report.table import STEPS, Column

POLICIES = {"none": "blind", "sequence": "sequence", "token": "token", "sequence-to-token": "sequence-to-token"}


def run(settings: PolicySettings) -> Path:
    """Make the table; returns the path of its JSON."""
    desk = Desk("policy", settings, judged=True)
    title, key = "Navigation policies at generation, on the same student", [STEPS, Column("policy", "policy", "left")]
    table = guided_table(desk, title, key, settings.temperatures, QUOTES["policy"])
    for model in desk.runs.pick(settings.method):
        guides = {n: desk.guide(model, policy, settings.navigate, settings.compass) for n, policy in POLICIES.items()}
        for steps in settings.steps:
            blind = blind_line(desk, model, steps, settings.temperatures)
            for name, guide in guides.items():
                table.add(**guided_row(desk, model, steps, guide, blind), policy=name)
    for steps in (at for at in POLICY if at in settings.steps):
        table.rows += [quoted_row(figures, steps=steps, policy=name) for name, figures in POLICY[steps].items()]
    desk.add_target(table)
    return desk.finish(table)
