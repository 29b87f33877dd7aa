r"""The paper's own figures, which stand beside ours in every report: `paper.toml`, a section for each of its tables."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Any

from tsdfm.report.table import Quote

PAPER_COLLAPSE = 6.5
"""The paper stars entropies below this."""


def numbered(found: Any) -> Any:
    """Keys of TOML are texts; those that are numbers (steps, τ, times) become numbers."""
    return {number(k): numbered(v) for k, v in found.items()} if isinstance(found, dict) else found


def number(name: str) -> str | int | float:
    """8 for `8`, 0.2 for `0.2`; another name stays."""
    return int(name) if name.isdecimal() else float(name) if name.replace(".", "").isdecimal() else name


_TABLES = tomllib.loads(resources.files(__package__).joinpath("paper.toml").read_text(encoding="utf-8"))
QUOTES = {name: Quote(**{**table, "figures": numbered(table["figures"])}) for name, table in _TABLES.items()}
"""The paper's tables, by the command that makes ours."""
