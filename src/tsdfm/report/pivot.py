"""Tables with a row a model and a column a step count: perplexity with entropy in brackets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tsdfm.report.desk import Desk
from tsdfm.report.paper import Figures
from tsdfm.report.rows import Plain, Row
from tsdfm.report.runs import TrainedRun
from tsdfm.report.table import Column, Table

KEPT = ("ppl", "ppl_interval", "entropy_bits", "entropy_interval", "valid", "collapsed", "nfe", "samples")
MANY = 1024
"""The step count that only the paper's many-step models have: held-out text does not stand in its column."""


def pair(row: Row) -> str:
    """`56.1 (7.20)`, with as many digits of a perplexity as matter."""
    ppl = row.ppl.value if row.ppl else None
    shown = "–" if ppl is None else f"{ppl:.2f}" if ppl < 10 else f"{ppl:.1f}"
    return f"{shown} ({row.entropy:.2f})"


def across(rows: Iterable[Row]) -> Plain:
    """Rows of one run at several step counts as the fields of one row."""
    out: Plain = {"marks": []}
    for row in rows:
        plain = row.plain()
        out[f"at_{row.steps}"] = pair(row)
        out |= {f"{name}_{row.steps}": plain[name] for name in KEPT if name in plain}
        if row.collapsed:
            out["marks"].append(f"at_{row.steps}")
    return out


def quoted(figures: Mapping[int, Figures]) -> Plain:
    """The paper's figures of one method as the fields of one row."""
    out: Plain = {"paper": True}
    for at, (entropy, g2, l2, l3) in figures.items():
        out |= {f"at_{at}": f"{g2} ({entropy})", f"ppl_{at}": g2, f"entropy_bits_{at}": entropy}
        out |= {f"llama2_{at}": l2, f"llama3_{at}": l3}
    return out


def step_columns(steps: Iterable[int]) -> list[Column]:
    """Perplexity and entropy, a column for each step count."""
    return [Column(f"at_{at}", f"{at} steps") for at in sorted(set(steps))]


def valid_columns(steps: Iterable[int]) -> list[Column]:
    """The share of valid stories, a column for each step count."""
    return [Column(f"valid_{at}", f"valid, {at} steps", format=".3f") for at in sorted(set(steps))]


def about(desk: Desk, run: TrainedRun) -> Plain:
    """The fields that say which run a row is of, its size and what it started from."""
    return {**desk.about(run), "parameters": run.parameters(), "init": run.started_from()}


def add_target(desk: Desk, table: Table, judge: str | None = None) -> None:
    """Held-out text, the same in every column."""
    more: Plain = {}
    if desk.runs.tokens is not None:
        row = desk.target().under(judge) if judge else desk.target()
        for at in steps_in(table.columns):
            more |= {f"at_{at}": pair(row), f"valid_{at}": row.valid.value if row.valid else None}
    desk.add_target(table, judge, **more)


def steps_in(columns: Sequence[Column]) -> list[str]:
    """The step counts that have a column of ours."""
    found = [column.name.removeprefix("at_") for column in columns]
    return [name for name in found if name.isdecimal() and name != str(MANY)]
