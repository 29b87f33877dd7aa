"""Tables about guided generation: by the number of candidates, by policy, and what the token phase does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tsdfm.report.desk import Desk
from tsdfm.report.rows import Plain
from tsdfm.report.runs import TrainedRun
from tsdfm.report.settings import CandidatesSettings, PolicySettings, RefinementSettings
from tsdfm.report.sweeps import Line, cell_row, swept
from tsdfm.report.table import ENTROPY, METHOD, ORIGIN, PPL, SOURCE, STEPS, VALID, Column, Table, judge_columns
from tsdfm.samples.guide import Guide

NONE = "no guidance"
POLICIES = {"none": "blind", "sequence": "sequence", "token": "token", "sequence-to-token": "sequence-to-token"}
PREFIX = "nav/"
REFINED = [
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


def candidates(desk: Desk, settings: CandidatesSettings) -> Table:
    """`tsdfm report candidates`: generation guided with K candidates a step."""
    title = f"Effect of the number of candidates K at generation ({settings.policy}, {settings.steps} steps)"
    last = [Column("seconds", "seconds", format=".1f")]
    table = guided_table(desk, title, [Column("k", "K")], settings.temperatures, last)
    for run in desk.runs.pick(settings.method):
        blind = swept(desk, run, settings.steps, settings.temperatures)
        for k in (0, *settings.k):
            navigate = replace(settings.navigate, k=max(k, 1))
            guide = desk.guide(run, settings.policy if k else "blind", navigate, settings.compass)
            table.add(**guided_row(desk, run, settings.steps, guide, blind), k=k or NONE)
    table.rows += [{**row, "k": row["k"] or NONE} for row in desk.quote.rows()]
    table.notes.append("seconds: generation of all texts of the row; the paper's are for 504 texts of 1 024 tokens")
    desk.add_target(table)
    return table


def policy(desk: Desk, settings: PolicySettings) -> Table:
    """`tsdfm report policy`: generation without guidance and with each policy."""
    title, key = "Navigation policies at generation, on the same student", [STEPS, Column("policy", "policy", "left")]
    table = guided_table(desk, title, key, settings.temperatures)
    for run in desk.runs.pick(settings.method):
        guides = {n: desk.guide(run, by, settings.navigate, settings.compass) for n, by in POLICIES.items()}
        for steps in settings.steps:
            blind = swept(desk, run, steps, settings.temperatures)
            for name, guide in guides.items():
                table.add(**guided_row(desk, run, steps, guide, blind), policy=name)
    table.rows += desk.quote.rows(steps=settings.steps)
    desk.add_target(table)
    return table


def refinement(desk: Desk, settings: RefinementSettings) -> Table:
    """`tsdfm report refinement`: what the token phase replaces and the safeguard accepts."""
    title = "Token refinement: at generation by step count, and in training"
    table = desk.table(title, REFINED)

    def add(run: TrainedRun, when: str, found: Mapping[str, float], length: int, **more: int) -> None:
        """What navigation did, by the names of the columns."""
        did: Plain = {name.removeprefix(PREFIX): value for name, value in found.items() if name.startswith(PREFIX)}
        did |= {"replaced_share": did["replaced"] / length} if "replaced" in did else {}
        table.add(source=run.source, when=when, method=desk.runs.label(run), **more, **did)

    for run in desk.runs.pick(settings.method):
        guide = desk.guide(run, "sequence-to-token", settings.navigate, settings.compass)
        for steps in settings.steps:
            cell = desk.cell(run, steps, guide=guide)
            add(run, "generation", cell.navigation, cell.length, steps=steps)
    for run in desk.runs.models:
        lines = [line for line in run.lines if line["kind"] == "train" and any(n.startswith(PREFIX) for n in line)]
        if lines:
            add(run, "training", lines[-1], run.manifest["model"]["length"])
    table.rows += desk.quote.rows()
    table.notes.append(
        "tokens are means of a navigated step, over all positions of a text; training: the last line logged"
    )
    return table


def guided_table(
    desk: Desk, title: str, key: Sequence[Column], temperatures: Sequence[float], last: Sequence[Column] = ()
) -> Table:
    """A table of guided generations; `key` are the columns that tell them apart, and each judge has one of its own."""
    blind = [Column("at_own", "ppl / blind at that entropy")] if temperatures else []
    counts = [Column("nfe", "NFE"), Column("compass_calls", "compass calls", format=".1f")]
    rest = [*blind, *judge_columns(desk.judge_names()[1:]), *([VALID] if desk.asked.world else []), *counts, *last]
    table = desk.table(title, [SOURCE, METHOD, *key, ORIGIN, ENTROPY, PPL, *rest])
    if temperatures:
        shown = ", ".join(f"{t:g}" for t in temperatures)
        what = "ppl / blind: over that of texts without guidance at the same entropy, on the sweep at temperatures"
        table.notes.append(f"{what} {shown}")
    return table


def guided_row(desk: Desk, run: TrainedRun, steps: int, guide: Guide | None, blind: Line) -> Plain:
    """A row of the run's texts, with the seconds they took and the ratio to the `blind` sweep, if it has a point."""
    control = blind if guide and blind.cells else None
    return cell_row(desk, run, desk.cell(run, steps, guide=guide), guide=guide, control=control)
