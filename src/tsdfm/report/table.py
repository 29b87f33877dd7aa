"""Tables for the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table


def story_table(rows: list[dict[str, Any]]) -> Table:
    """The demo's table: a row for each method and step count, with 95 % intervals."""
    table = Table(title="Stories judged by the exact judge of the story world")
    for name in ("method", "source", "steps", "NFE"):
        table.add_column(name, justify="left" if name in ("method", "source") else "right")
    for name in ("valid stories", "perplexity", "NLL / story", "entropy (bits)", "tokens/s"):
        table.add_column(name, justify="right")
    for row in rows:
        low, high = row["valid_interval"]
        table.add_row(
            row["method"],
            row["source"] or "",
            _number(row["steps"]),
            _number(row["nfe"]),
            f"{row['valid']:.3f} [{low:.2f}, {high:.2f}]",
            f"{row['ppl']:.2f}",
            f"{row['nll']:.1f}",
            f"{row['entropy_bits']:.2f}",
            _number(row.get("tokens_per_s")),
        )
    return table


def show(rows: list[dict[str, Any]], console: Console | None = None) -> None:
    """Print the table, and under it what the settings were."""
    console = console or Console(width=120)
    console.print(story_table(rows))
    made = [row for row in rows if row["steps"] is not None]
    if made:
        one = made[0]
        console.print(
            f"{one['samples']} texts a row, seed {one['seed']}, temperature {one['temperature']}, "
            f"top-p {one['top_p']}; judge {one['judge']} (NLL and perplexity with 1/1000 of noise)",
            style="dim",
        )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}".replace(",", " ")
