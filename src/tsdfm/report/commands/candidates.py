"""`tsdfm report candidates`: generation guided with K candidates a step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tsdfm.report.commands.main import add_target
from tsdfm.report.desk import Desk
from tsdfm.report.guided import blind_line, guided_columns, guided_row, note_blind
from tsdfm.report.paper import CANDIDATES, SCALE
from tsdfm.report.settings import CandidatesSettings
from tsdfm.report.table import Column, Table


def run(settings: CandidatesSettings) -> Path:
    """Make the table; returns the path of its JSON."""
    desk = Desk("candidates", settings)
    desk.need_judge()
    title = f"Effect of the number of candidates K at generation ({settings.policy}, {settings.steps} steps)"
    first = [Column("source", "source", "left"), Column("method", "method", "left"), Column("k", "K")]
    last = Column("seconds", "seconds", format=".1f")
    table = Table("candidates", title, [*first, *guided_columns(desk, settings.temperatures), last])
    for model in desk.found.pick([settings.method], "train a student first"):
        blind = blind_line(desk, model, settings.steps, settings.temperatures)
        for k in (0, *settings.k):
            navigate = replace(settings.navigate, k=max(k, 1))
            guide = desk.guide(model, settings.policy if k else "blind", navigate, settings.compass)
            row = guided_row(desk, model, settings.steps, guide, blind)
            table.add(**row, method=desk.label(model), k=k or "no guidance")
    table.rows += paper_rows()
    note_blind(table, settings.temperatures)
    table.notes.append("seconds: generation of all texts of the row; the paper's are for 504 texts of 1 024 tokens")
    add_target(desk, table)
    table.paper = {"label": "tab:k_ablation", "scale": SCALE, "figures": CANDIDATES}
    return desk.finish(table)


def paper_rows() -> list[dict[str, Any]]:
    """The paper's rows."""
    out = []
    for k, ((entropy, ppl, l2, l3), seconds) in CANDIDATES.items():
        row = {"source": "uniform", "method": "fs-dfm", "origin": SCALE, "k": k or "no guidance", "paper": True}
        out.append({**row, "ppl": ppl, "entropy_bits": entropy, "seconds": seconds, "llama2": l2, "llama3": l3})
    return out
