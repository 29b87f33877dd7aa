"""Recipes: a run as a small file of settings. Shipped ones are found by name, others by path."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tsdfm.errors import UserError
from tsdfm.settings import load_toml, nearest

FOLDER = Path(__file__).parent


def shipped() -> list[str]:
    """The names of the recipes that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def find(recipe: str) -> Path:
    """The file of a recipe given by name (`tiny_cpu`) or path."""
    named = FOLDER / f"{recipe}.toml"
    if named.is_file():
        return named
    path = Path(recipe)
    if path.suffix == ".toml" or path.is_file():
        return path
    raise UserError(f"no recipe called {recipe!r}{nearest(recipe, shipped())}")


def table(recipe: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A section of a recipe, or an empty one; it must be a table of settings."""
    found = recipe.get(name, {})
    if not isinstance(found, Mapping):
        raise UserError(f"[{name}] of the recipe must be a table of settings, not {found!r}")
    return dict(found)


def load_recipe(recipe: str) -> dict[str, Any]:
    """The plain values of a recipe."""
    return load_toml(find(recipe))
