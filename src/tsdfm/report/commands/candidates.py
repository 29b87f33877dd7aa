"""`tsdfm report candidates`: generation guided with K candidates a step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tsdfm.report.desk import Desk
from tsdfm.report.guided import blind_line, guided_row, guided_table, quoted_row
from tsdfm.report.paper import CANDIDATES, QUOTES
from tsdfm.report.settings import CandidatesSettings
from tsdfm.report.table import Column

NONE = "no guidance"


def run(settings: CandidatesSettings) -> Path:
    """Make the table; returns the path of its JSON."""
    desk = Desk("candidates", settings, judged=True)
    title = f"Effect of the number of candidates K at generation ({settings.policy}, {settings.steps} steps)"
    last = [Column("seconds", "seconds", format=".1f")]
    table = guided_table(desk, title, [Column("k", "K")], settings.temperatures, QUOTES["candidates"], last)
    for model in desk.runs.pick(settings.method):
        blind = blind_line(desk, model, settings.steps, settings.temperatures)
        for k in (0, *settings.k):
            navigate = replace(settings.navigate, k=max(k, 1))
            guide = desk.guide(model, settings.policy if k else "blind", navigate, settings.compass)
            table.add(**guided_row(desk, model, settings.steps, guide, blind), k=k or NONE)
    for k, (figures, seconds) in CANDIDATES.items():
        table.add(**quoted_row(figures, k=k or NONE), seconds=seconds)
    table.notes.append("seconds: generation of all texts of the row; the paper's are for 504 texts of 1 024 tokens")
    desk.add_target(table)
    return desk.finish(table)
