"""Rows and columns of tables about guided generation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tsdfm.report.desk import Desk, size
from tsdfm.report.runs import Run
from tsdfm.report.sweeps import Line, matched, see, swept
from tsdfm.report.table import Column, Table
from tsdfm.samples.guide import Guide

KEPT = ("ppl", "ppl_interval", "ppl_geometric", "ppl_geometric_interval", "ppl_corpus", "ppl_own", "ppl_own_interval")
"""What is kept of each judge's figures."""
DRAWS = 400
NOTE = "ppl / blind: over that of texts without guidance at the same entropy, on the sweep at temperatures {}"


def guided_columns(desk: Desk, temperatures: Sequence[float] = ()) -> list[Column]:
    """What is shown of a guided generation; a column for each judge after the first."""
    stories = [Column("valid", "valid stories", format=".3f")] if desk.measure.world else []
    others = [Column(f"ppl {name}", f"ppl, {name}", format=".2f") for name in desk.judge_names()[1:]]
    blind = [Column("at_own", "ppl / blind at that entropy")] if temperatures else []
    return [
        Column("origin", "from", "left"),
        Column("entropy_bits", "entropy (bits)", format=".2f"),
        Column("ppl", "perplexity", format=".2f"),
        *blind,
        *others,
        *stories,
        Column("nfe", "NFE"),
        Column("compass_calls", "compass calls", format=".1f"),
    ]


def blind_line(desk: Desk, model: Run, steps: int, temperatures: Sequence[float]) -> Line | None:
    """The model's sweep without guidance, if one is wanted."""
    return swept(desk, model, steps, temperatures) if temperatures else None


def guided_row(desk: Desk, model: Run, steps: int, guide: Guide | None, blind: Line | None = None) -> dict[str, Any]:
    """A row of the model's texts, with the seconds they took; `method` is left to the table.

    With the sweep of a `blind` line, also the ratio to it at the same entropy, under every judge.
    """
    cell = desk.cell(model, steps, guide=guide)
    row = desk.row_of(model, cell, guide=guide)
    seconds = row["samples"] * row["length"] / row["tokens_per_s"]
    judges = {name: {k: v for k, v in found.items() if k in KEPT} for name, found in row["judges"].items()}
    kept = {name: value for name, value in row.items() if name not in ("method", "texts")} | {"judges": judges}
    if blind is not None and guide is not None:
        seen = see(desk, cell, row, geometric=False, temperature=1.0)
        mine = Line("", "", model, steps, [seen], {})
        for name, found in judges.items():
            found |= matched(mine, blind, name, draws=DRAWS, seed=desk.measure.seed)
        kept |= {k: v for k, v in next(iter(judges.values())).items() if k not in KEPT}
    kept |= {f"ppl {name}": found["ppl"] for name, found in list(judges.items())[1:]}
    marks = ["entropy_bits", "ppl"] if row["collapsed"] else []
    return {**kept, "marks": marks, "seconds": seconds, "origin": f"ours, {size(model.parameters())}"}


def note_blind(table: Table, temperatures: Sequence[float]) -> None:
    """Say what the ratio to blind texts is."""
    if temperatures:
        table.notes.append(NOTE.format(", ".join(f"{t:g}" for t in temperatures)))
