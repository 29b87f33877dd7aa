"""Rows and columns of tables about guided generation."""

from __future__ import annotations

from typing import Any

from tsdfm.report.desk import Desk, size
from tsdfm.report.runs import Run
from tsdfm.report.table import Column
from tsdfm.samples.guide import Guide


def guided_columns(desk: Desk) -> list[Column]:
    """What is shown of a guided generation."""
    stories = [Column("valid", "valid stories", format=".3f")] if desk.measure.world else []
    return [
        Column("origin", "from", "left"),
        Column("entropy_bits", "entropy (bits)", format=".2f"),
        Column("ppl", "perplexity", format=".2f"),
        *stories,
        Column("nfe", "NFE"),
        Column("compass_calls", "compass calls", format=".1f"),
    ]


def guided_row(desk: Desk, model: Run, steps: int, guide: Guide | None) -> dict[str, Any]:
    """A row of the model's texts, with the seconds they took; `method` is left to the table."""
    row = desk.row(model, steps, guide=guide)
    seconds = row["samples"] * row["length"] / row["tokens_per_s"]
    kept = {name: value for name, value in row.items() if name not in ("method", "texts", "judges")}
    marks = ["entropy_bits", "ppl"] if row["collapsed"] else []
    return {**kept, "marks": marks, "seconds": seconds, "origin": f"ours, {size(model.parameters())}"}
