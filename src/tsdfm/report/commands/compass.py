"""`tsdfm report compass`: the validation of each compass beside the paper's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tsdfm.errors import UserError
from tsdfm.report.desk import Desk
from tsdfm.report.page.gather import validations
from tsdfm.report.paper import QUOTES
from tsdfm.report.rows import Plain
from tsdfm.report.settings import CompassSettings
from tsdfm.report.table import Column, Table

NAME = "compass-table"  # `report/compass.json` is what the validations say, in full
SINGLE = {
    "adjacent_bins_monotone": ("adjacent time bins that fall", ".1%"),
    "smoothness": ("adjacent states of a text that fall", ".1%"),
    "samples_with_violation": ("texts with any violation", ".1%"),
    "largest_violation": ("largest violation", ".3f"),
    "spearman": ("Spearman ρ of t and E", ".3f"),
    "pearson": ("Pearson r of t and E", ".3f"),
    "energy_gap": ("energy gap, first bin to t = 1", ".3f"),
}
Figure = tuple[str, str, Any, Any, list[float] | None]
"""What was measured, its format, our value, the paper's, and our interval."""


def run(desk: Desk, settings: CompassSettings) -> Table:
    """Make the table."""
    compasses, home = desk.runs.compasses, desk.runs.home
    found = validations([one.path for one in compasses], home / "report" / "compass.json")
    if not found and any(one.shipped for one in compasses):
        raise UserError("a shipped compass has no validation with it (see its card): give the folder of its run")
    if not found:
        raise UserError(f"no validated compass in {home}: run `tsdfm compass validate` on it first")
    table = validation_table(found)
    table.about = {"checkpoints": {source: exam.get("checkpoint") for source, exam in found.items()}}
    return table


def validation_table(found: Mapping[str, Plain]) -> Table:
    """What the examination of each source's compass said, beside the paper's."""
    columns, rows = [Column("what", "measure", "left")], dict[str, Plain]()
    for source, exam in found.items():
        columns += [Column(source, f"{source}, ours"), Column(f"{source}_paper", f"{source}, paper")]
        for what, form, value, quoted, ends in figures(exam, QUOTES["compass"].figures.get(source, {})):
            row = rows.setdefault(what, {"what": what})
            row |= {source: shown(value, form, ends), f"{source}_paper": shown(quoted, form)}
            row |= {f"{source}_value": value, f"{source}_paper_value": quoted}
    table = Table(NAME, "Compass validation on held-out text", columns, list(rows.values()), quote=QUOTES["compass"])
    table.notes.append("paper: 170M velocity model, 90M compass, 1 024 tokens of FineWeb-Edu; energies have no unit")
    for source, exam in found.items():
        pairs, known = sum(exam.get("pairs", {}).values()), [exam.get(n) for n in ("checkpoint", "samples", "seed")]
        table.notes.append(f"{source}: {known[0]}, {known[1]} texts, {pairs} pairs, seed {known[2]}")
    return table


def figures(exam: Plain, paper: Plain) -> Iterator[Figure]:
    """How often the real state has the lower energy, by strategy; single numbers; the mean energy by time."""
    known, intervals = paper.get("accuracy", {}), exam.get("intervals", {})
    for name, value in exam["accuracy"].items():
        yield f"accuracy, {name}", ".1%", value, known.get(name), intervals.get(name)
    for name, (what, form) in SINGLE.items():
        value = exam.get(name)
        if name == "samples_with_violation" and value is not None:
            value = value / exam["samples"] if "samples" in exam else None
        yield what, form, value, paper.get(name), None
    quoted = paper.get("bins", ())
    for i, part in enumerate(exam["bins"]):
        when = "1" if part["from"] >= 1 else f"{part['from']:.1f} to {part['to']:.1f}"
        yield f"mean energy, t = {when}", ".3f", part["mean"], quoted[i] if i < len(quoted) else None, None


def shown(value: float | None, form: str, ends: list[float] | None = None) -> str | None:
    """`97.8% [96.5, 98.4]`."""
    if value is None:
        return None
    return f"{value:{form}}" + (f" [{100 * ends[0]:.1f}, {100 * ends[1]:.1f}]" if ends else "")
