"""`tsdfm report compass`: the validation of each compass beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tsdfm.errors import UserError
from tsdfm.report.desk import Desk
from tsdfm.report.paper import COMPASS
from tsdfm.report.settings import CompassTableSettings
from tsdfm.report.table import Column, Table
from tsdfm.store.files import read_json

NAME = "compass-table"  # `report/compass.json` is what the validations say, in full
SHARES = ("adjacent_bins_monotone", "smoothness", "samples_with_violation")
SINGLE = {
    "adjacent_bins_monotone": "adjacent time bins that fall",
    "smoothness": "adjacent states of a text that fall",
    "samples_with_violation": "texts with any violation",
    "largest_violation": "largest violation",
    "spearman": "Spearman ρ of t and E",
    "pearson": "Pearson r of t and E",
    "energy_gap": "energy gap, first bin to t = 1",
}


def run(settings: CompassTableSettings) -> Path:
    """Make the table; returns the path of its JSON."""
    desk = Desk("compass", settings)
    found = validations(desk)
    table = Table(NAME, "Compass validation on held-out text", [Column("what", "measure", "left")])
    for source in found:
        table.columns.append(Column(source, f"{source}, ours"))
        table.columns.append(Column(f"{source}_paper", f"{source}, paper"))
    table.rows = [*accuracy_rows(found), *single_rows(found), *bin_rows(found)]
    table.notes.append("paper: 170M velocity model, 90M compass, 1 024 tokens of FineWeb-Edu; energies have no unit")
    table.notes += [said(source, one) for source, one in found.items()]
    table.paper = {"label": "tab:strategy_accuracy", "scale": "paper, 90M compass", "figures": COMPASS}
    table.about = {"checkpoints": {source: one["checkpoint"] for source, one in found.items()}}
    return desk.finish(table, sampled=False)


def validations(desk: Desk) -> dict[str, dict[str, Any]]:
    """`validation.json` of each source's compass, or what the pipeline collected."""
    out: dict[str, dict[str, Any]] = {}
    for compass in desk.found.compasses:
        path = compass.path / "validation.json"
        if path.is_file():
            out.setdefault(compass.source, read_json(path))
    collected = desk.found.home / "report" / "compass.json"
    if not out and collected.is_file():
        out = read_json(collected)
    if not out:
        if any(compass.shipped for compass in desk.found.compasses):
            raise UserError("a shipped compass has no validation with it (see its card): give the folder of its run")
        raise UserError(f"no validated compass in {desk.found.home}: run `tsdfm compass validate` on it first")
    return out


def accuracy_rows(found: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """How often the real state has the lower energy, by strategy."""
    names = dict.fromkeys(name for one in found.values() for name in one["accuracy"])
    rows = []
    for name in names:
        row: dict[str, Any] = {"what": f"accuracy, {name}"}
        for source, one in found.items():
            quoted = COMPASS.get(source, {}).get("accuracy", {}).get(name)
            row[source] = percent(one["accuracy"].get(name), one["intervals"].get(name))
            row[f"{source}_paper"] = percent(quoted)
            row |= {f"{source}_value": one["accuracy"].get(name), f"{source}_paper_value": quoted}
        rows.append(row)
    return rows


def single_rows(found: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The single numbers on monotonicity."""
    rows = []
    for name, label in SINGLE.items():
        row: dict[str, Any] = {"what": label}
        for source, one in found.items():
            value, quoted = one.get(name), COMPASS.get(source, {}).get(name)
            if name == "samples_with_violation" and value is not None:
                value = value / one["samples"]
            show = percent if name in SHARES else plain
            row |= {source: show(value), f"{source}_paper": show(quoted)}
            row |= {f"{source}_value": value, f"{source}_paper_value": quoted}
        rows.append(row)
    return rows


def bin_rows(found: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Mean energy by time."""
    rows = []
    for i in range(max(len(one["bins"]) for one in found.values())):
        row: dict[str, Any] = {}
        for source, one in found.items():
            part = one["bins"][i]
            last = part["from"] >= 1
            when = "1" if last else f"{part['from']:.1f} to {part['to']:.1f}"
            row.setdefault("what", f"mean energy, t = {when}")
            quoted = COMPASS.get(source, {}).get("bins", ())
            value = quoted[i] if i < len(quoted) else None
            row |= {source: plain(part["mean"]), f"{source}_paper": plain(value)}
            row |= {f"{source}_value": part["mean"], f"{source}_paper_value": value}
        rows.append(row)
    return rows


def said(source: str, one: Mapping[str, Any]) -> str:
    """On what one validation rests."""
    pairs = sum(one["pairs"].values())
    return f"{source}: {one['checkpoint']}, {one['samples']} texts, {pairs} pairs, seed {one['seed']}"


def percent(value: float | None, interval: list[float] | None = None) -> str | None:
    """`97.8 % [96.5, 98.4]`."""
    if value is None:
        return None
    return f"{value:.1%}" + (f" [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]" if interval else "")


def plain(value: float | None) -> str | None:
    """A number with three digits after the point."""
    return None if value is None else f"{value:.3f}"
