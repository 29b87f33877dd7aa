"""The tables of `tsdfm report NAME`, and which function makes each; it is loaded when used."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

TABLES = {
    "main": "commands.by_steps:main",
    "frontier": "sweeps:frontier",
    "threshold": "commands.by_steps:threshold",
    "candidates": "commands.guided:candidates",
    "policy": "commands.guided:policy",
    "refinement": "commands.guided:refinement",
    "diversity": "commands.diversity:run",
    "prefix": "commands.prefix:run",
    "scaling": "commands.by_steps:scaling",
    "mauve": "commands.mauve:run",
    "compass": "commands.compass:run",
    "overhead": "commands.overhead:run",
    "claims": "commands.claims:run",
}


def maker(name: str) -> Callable[[Any], Path]:
    """The function that makes a table: settings → the path of its JSON."""
    module, _, function = TABLES[name].partition(":")
    found: Callable[[Any], Path] = getattr(importlib.import_module(f"tsdfm.report.{module}"), function)
    return found
