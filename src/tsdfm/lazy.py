"""Names of a package that are loaded when they are first asked for, and what later rooms bring to earlier ones.

A package's settings lie beside what needs torch, and `tsdfm COMMAND --help` reads the settings alone:

    __getattr__ = lazily(__name__, {"DDiT": "ddit"})
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

BROUGHT: dict[str, Callable[[], Mapping[str, Any]]] = {}
"""What later rooms bring to earlier ones, by its kind. The package's door (`tsdfm/__init__.py`) fills it, so that it is
there whatever is imported, and nothing is loaded before it is called."""


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package whose names live in other modules: `homes` says which of its own, for each."""

    def get(name: str) -> Any:
        if name in homes:
            return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get
