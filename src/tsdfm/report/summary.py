"""The table that the measuring stage ends with: every cell a row, with 95 % intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from tsdfm.report.table import Column, Table


def summary(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The rows of `metrics.json` as a table; story columns only where the story world judged."""
    stories = any("valid" in row for row in rows)
    columns = [
        Column("method", "method", "left"),
        Column("source", "source", "left"),
        Column("steps", "steps", format="d"),
        Column("nfe", "NFE", format="d"),
    ]
    if stories:
        columns += [Column("valid_text", "valid stories"), Column("nll", "NLL / story", format=".1f")]
    columns += [
        Column("ppl_text", "perplexity"),
        Column("entropy_bits", "entropy (bits)", format=".2f"),
        Column("tokens_per_s", "tokens/s", format=",.0f"),
    ]
    others = list(dict.fromkeys(name for row in rows for name in list(row.get("judges") or ())[1:]))
    columns += [Column(f"ppl {name}", f"ppl, {name}", format=".2f") for name in others]
    judged = "the exact judge of the story world" if stories else "language models"
    table = Table("metrics", f"Texts judged by {judged}", columns, about=about(rows))
    if stories:
        table.notes.append("perplexity and NLL of stories are under the world with 1/1000 of noise")
    table.rows = [shown(row) for row in rows]
    return table


def shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with its intervals as text."""
    marks = ["entropy_bits", "ppl_text"] if row.get("collapsed") else []
    out = {**row, "marks": marks, "ppl_text": with_interval(row, "ppl", ".2f")}
    out |= {f"ppl {name}": fields.get("ppl") for name, fields in (row.get("judges") or {}).items()}
    if "valid" in row:
        out["valid_text"] = with_interval(row, "valid", ".3f", ".2f")
    return out


def with_interval(row: Mapping[str, Any], name: str, spec: str, ends: str | None = None) -> str | None:
    """`0.812 [0.75, 0.86]`."""
    value, interval = row.get(name), row.get(f"{name}_interval")
    if value is None:
        return None
    if interval is None:
        return f"{value:{spec}}"
    low, high = interval
    return f"{value:{spec}} [{low:{ends or spec}}, {high:{ends or spec}}]"


def about(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What made the rows, for the line below the table."""
    made = [row for row in rows if row.get("steps") is not None]
    if not made:
        return {}
    names = list(made[0].get("judges") or {made[0].get("judge"): None})
    return {
        "samples": made[0]["samples"],
        "seed": made[0]["seed"],
        "judge_names": [name for name in names if name],
        "hardware": made[0].get("hardware"),
    }


def show(rows: Sequence[Mapping[str, Any]], console: Console | None = None) -> None:
    """Print the table, and under it what the settings were."""
    summary(rows).show(console or Console(width=None if Console().is_terminal else 140))
    made = [row for row in rows if row.get("steps") is not None]
    if made:
        warm = ", ".join(f"{t:g}" for t in sorted({row["temperature"] for row in made}))
        (console or Console()).print(f"temperature {warm}, top-p {made[0]['top_p']:g}", style="dim")
