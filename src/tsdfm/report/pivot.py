"""Tables with one column a step count: perplexity with entropy in brackets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tsdfm.report.paper import Figures
from tsdfm.report.table import Column


def number(value: float) -> str:
    """A perplexity with as many digits as matter."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def pair(ppl: float | None, entropy: float) -> str:
    """`56.1 (7.20)`."""
    return f"{'–' if ppl is None else number(ppl)} ({entropy:.2f})"


def across(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows of one method at several step counts as the fields of one row."""
    out: dict[str, Any] = {"marks": []}
    for row in rows:
        at = row["steps"]
        out[f"at_{at}"] = pair(row.get("ppl"), row["entropy_bits"])
        for name in ("ppl", "ppl_interval", "entropy_bits", "entropy_interval", "valid", "collapsed", "nfe", "samples"):
            if name in row:
                out[f"{name}_{at}"] = row[name]
        if row.get("collapsed"):
            out["marks"].append(f"at_{at}")
    return out


def quoted(figures: Mapping[int, Figures]) -> dict[str, Any]:
    """The paper's figures of one method as the fields of one row."""
    out: dict[str, Any] = {"paper": True}
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
