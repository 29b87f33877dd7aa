"""`tsdfm report seeds`: one table of several, the same table made with other seeds.

A row of it is the mean of those that agree in what they are of (method, source, steps, temperature, …); ± is half of
the distance between the largest and the smallest of them. With two or three seeds that is all that can be said.

Of frontiers it also draws the mean curves, and gives each seed's ratio to the control (`report.curves`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tsdfm import terminal
from tsdfm.errors import UserError
from tsdfm.report.curves import ABSENT, drawn, frontiers_in, ratios
from tsdfm.report.page.gather import table_in
from tsdfm.report.rows import Plain
from tsdfm.report.settings import SeedsSettings
from tsdfm.report.table import Column, Table
from tsdfm.store.files import read_json, write_text

SAME = ("steps", "temperature", "top_p", "k", "tau")  # numbers that say what a row is of


def run(settings: SeedsSettings) -> Path:
    """Join, write and show them; returns the path of the joined JSON."""
    files = [found(path, settings.name) for path in settings.tables]
    if len(set(files)) < 2:
        raise UserError("give at least two tables, each of a seed of its own")
    plain = [read_json(path) for path in files]
    tables = [joined([table_in(path.parent, path.stem, each) for path, each in zip(files, plain, strict=True)])]
    frontiers, seeds = frontiers_in(files, plain, settings), [each.get("seed") for each in plain]
    figures = drawn(frontiers, settings) if frontiers else {}
    tables += [ratios(frontiers, settings)] if frontiers else []
    about = {name: plain[0].get(name) for name in ("judge_names", "samples", "hardware") if plain[0].get(name)}
    for table in tables:
        table.notes.append(f"seeds {', '.join(map(str, seeds))}: mean ± half of the range, or each in this order")
        table.about = {"seeds": seeds, "commands": [each.get("command") for each in plain], **about}
    inputs = {path.resolve() for path in files}
    if any((settings.out / f"{table.name}.json").resolve() in inputs for table in tables):
        raise UserError(f"{settings.out} holds one of the tables that are joined: give another folder")
    path, *_ = [table.save(settings.out) for table in tables]
    for name, text in figures.items():
        write_text(settings.out / name, text)
    for table in tables:
        table.show(most=None if settings.verbose else 12)
    terminal.made("report seeds", f"{len(tables[0].rows)} rows (as .md and .json)", path.with_suffix(".md"))
    return path


def found(path: Path, name: str) -> Path:
    """The JSON file of a table, which may lie in the report of a pipeline's folder."""
    if path.suffix != ".json" and not name:
        raise UserError(f"{path} is no JSON file: give --name, as in --name main, with folders")
    places = [path] if path.suffix == ".json" else [path / f"{name}.json", path / "report" / f"{name}.json"]
    for place in places:
        if place.is_file():
            return place
    raise UserError(f"no table at {places[-1]}: give its JSON file, or a report's folder and --name")


def joined(tables: Sequence[Table]) -> Table:
    """The mean table. Rows that not all of them have are left out, and counted in a note; quoted ones are kept once."""
    first, others = tables[0], [{key(t, row): row for row in t.rows} for t in tables[1:]]
    if any({c.name for c in t.columns} != {c.name for c in first.columns} for t in tables):
        raise UserError("these tables have different columns: give the same table of several seeds")
    rows, known = list[Plain](), {key(t, row) for t in tables for row in t.rows if not row.get("paper")}
    for row in first.rows:
        same = [row, *(other[key(first, row)] for other in others if key(first, row) in other)]
        if row.get("paper"):
            rows.append(row)
        elif len(same) == len(tables):
            rows.append(mean_row(first.columns, same))
    left = len(known) - sum(not row.get("paper") for row in rows)
    notes = [f"rows that not every seed has are left out: {left}"] if left else []
    return Table(first.name, first.title, first.columns, rows, notes)


def key(table: Table, row: Plain) -> tuple[Any, ...]:
    """What a row is of."""
    return tuple(row.get(c.name) for c in table.columns if c.align == "left" or c.name in SAME)


def mean_row(columns: Sequence[Column], rows: Sequence[Plain]) -> Plain:
    """Means of what are numbers in every row, each with its spread; words stand, where they differ one by one."""
    out: Plain = {}
    for column in columns:
        values = [row.get(column.name) for row in rows]
        numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
        if column.name in SAME or len(numbers) < len(values):
            words = [column.show({column.name: v}) or ABSENT for v in values]
            out[column.name] = values[0] if len(set(words)) == 1 else ", ".join(words)
            continue
        out[column.name] = sum(numbers) / len(numbers)
        if max(numbers) > min(numbers):
            out[f"{column.name}_spread"] = (max(numbers) - min(numbers)) / 2
        out[f"{column.name}_seeds"] = numbers
    return out | {"marks": sorted({mark for row in rows for mark in row.get("marks", ())})}
