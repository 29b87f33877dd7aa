"""The tables `compass validate` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table


def show(found: Mapping[str, Any], console: Console) -> None:
    """Accuracy by strategy, energy by time, and the single numbers."""
    console.print(accuracy_table(found))
    console.print(time_table(found))
    console.print(summary_table(found))
    if found["candidates"]:
        console.print(candidate_table(found))


def accuracy_table(found: Mapping[str, Any]) -> Table:
    """How often the real state has the lower energy."""
    table = Table(title=f"Real below corrupted, {found['source']} source (overall: without velocity_step)")
    for name in ("strategy", "accuracy", "95 % interval", "pairs", "tokens changed"):
        table.add_column(name, justify="left" if name == "strategy" else "right")
    for name, pairs in found["pairs"].items():
        low, high = found["intervals"][name]
        share, changed = found["accuracy"][name], found["tokens_changed"][name]
        table.add_row(name, f"{share:.1%}", f"{low:.1%} to {high:.1%}", str(pairs), f"{changed:.1f}")
    table.add_section()
    table.add_row("overall", f"{found['accuracy']['overall']:.1%}", "", "", "")
    return table


def time_table(found: Mapping[str, Any]) -> Table:
    """Mean energy by time bin, its spread, and where single samples rise."""
    table = Table(title="Energy against time")
    for name in ("t", "mean E", "std", "states", "violations"):
        table.add_column(name, justify="right")
    for i, part in enumerate(found["bins"]):
        label = "1" if part["from"] >= 1 else f"[{part['from']:.1f}, {part['to']:.1f})"
        mean, std = ("–" if part[x] is None else f"{part[x]:.3f}" for x in ("mean", "std"))
        wrong = found["violations_by_region"]
        table.add_row(label, mean, std, str(part["count"]), str(wrong[i]) if i < len(wrong) else "")
    return table


def summary_table(found: Mapping[str, Any]) -> Table:
    """The aggregate numbers of the paper's appendix."""
    table = Table(title="Monotonicity", show_header=False)
    table.add_column("what")
    table.add_column("value", justify="right")
    share, count = found["adjacent_bins_monotone"], found["adjacent_bins"]
    table.add_row("adjacent bins that fall", f"{round(share * count)} of {count}")
    table.add_row("per-sample smoothness", f"{found['smoothness']:.1%} of {found['smoothness_pairs']}")
    table.add_row("samples with a violation", f"{found['samples_with_violation']} of {found['samples']}")
    table.add_row("largest violation", f"{found['largest_violation']:.3f}")
    for name, label in (("spearman", "Spearman ρ of t and E"), ("pearson", "Pearson r of t and E")):
        table.add_row(label, "–" if found[name] is None else f"{found[name]:.3f}")
    table.add_row("energy gap, first bin to t = 1", f"{found['energy_gap']:.3f}")
    return table


def candidate_table(found: Mapping[str, Any]) -> Table:
    """The true next state against a model's jumps, and how far the jumps' energies lie apart."""
    table = Table(title="True next state against jumps")
    for name in ("t", "h", "true below jump", "pairs", "spread of E between jumps"):
        table.add_column(name, justify="right")
    for row in found["candidates"]:
        share = "–" if row["pair_accuracy"] is None else f"{row['pair_accuracy']:.1%}"
        table.add_row(f"{row['t']:.2f}", f"{row['h']:.4g}", share, str(row["pairs"]), f"{row['spread']:.3f}")
    return table
