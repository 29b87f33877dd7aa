"""Tables about guided generation: the same texts without guidance and with it."""

from __future__ import annotations

from collections.abc import Sequence

from tsdfm.report.desk import Desk
from tsdfm.report.paper import SCALE, Figures
from tsdfm.report.rows import Plain
from tsdfm.report.runs import TrainedRun
from tsdfm.report.sweeps import Line, matched, see, swept
from tsdfm.report.table import ENTROPY, METHOD, ORIGIN, PPL, SOURCE, VALID, Column, Quote, Table
from tsdfm.samples.guide import Guide

KEPT = ("ppl", "ppl_interval", "ppl_geometric", "ppl_geometric_interval", "ppl_corpus", "ppl_own", "ppl_own_interval")
"""What is kept of each judge's figures."""
DRAWS = 400


def guided_table(
    desk: Desk,
    title: str,
    key: Sequence[Column],
    temperatures: Sequence[float],
    quote: Quote,
    last: Sequence[Column] = (),
) -> Table:
    """A table of guided generations; `key` are the columns that tell them apart, and each judge has one of its own."""
    others = [Column(f"ppl {name}", f"ppl, {name}", format=".2f") for name in desk.bench.judge_names()[1:]]
    blind = [Column("at_own", "ppl / blind at that entropy")] if temperatures else []
    stories = [VALID] if desk.measure.world else []
    counts = [Column("nfe", "NFE"), Column("compass_calls", "compass calls", format=".1f")]
    columns = [SOURCE, METHOD, *key, ORIGIN, ENTROPY, PPL, *blind, *others, *stories, *counts, *last]
    table = Table(desk.name, title, columns, quote=quote)
    if temperatures:
        shown = ", ".join(f"{t:g}" for t in temperatures)
        what = "ppl / blind: over that of texts without guidance at the same entropy, on the sweep at temperatures"
        table.notes.append(f"{what} {shown}")
    return table


def blind_line(desk: Desk, run: TrainedRun, steps: int, temperatures: Sequence[float]) -> Line | None:
    """The run's sweep without guidance, if one is wanted."""
    return swept(desk, run, steps, temperatures) if temperatures else None


def guided_row(desk: Desk, run: TrainedRun, steps: int, guide: Guide | None, blind: Line | None = None) -> Plain:
    """A row of the run's texts, with the seconds they took.

    With the sweep of a `blind` line, also the ratio to it at the same entropy, under every judge.
    """
    cell = desk.cell(run, steps, guide=guide)
    row = desk.row_of(run, cell, guide=guide)
    out = row.plain()
    judges = {name: {k: v for k, v in found.items() if k in KEPT} for name, found in out["judges"].items()}
    if blind is not None and guide is not None:
        mine = Line("", "", run, steps, [see(desk, cell, row, temperature=1.0)])
        for name, found in judges.items():
            found |= matched(mine, blind, name, draws=DRAWS, seed=desk.measure.seed)
        out |= {k: v for k, v in next(iter(judges.values())).items() if k not in KEPT}
    out |= {f"ppl {name}": found["ppl"] for name, found in list(judges.items())[1:]}
    seconds = len(cell.texts) * cell.length / out["tokens_per_s"]
    marks = ["entropy_bits", "ppl"] if row.collapsed else []
    del out["texts"]
    return {**out, "judges": judges, "marks": marks, "seconds": seconds, **desk.about(run)}


def quoted_row(figures: Figures, **key: object) -> Plain:
    """A row of the paper: its FS-DFM student, uniform source."""
    entropy, ppl, l2, l3 = figures
    known = {"source": "uniform", "method": "fs-dfm", "origin": SCALE, **key, "paper": True}
    return {**known, "ppl": ppl, "entropy_bits": entropy, "llama2": l2, "llama3": l3}
