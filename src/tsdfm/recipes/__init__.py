"""Recipes: a run as a small file of settings. Shipped ones are found by name, others by path."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tsdfm.errors import UserError
from tsdfm.settings import load_toml, merge, nearest, path_from

FOLDER = Path(__file__).parent


def shipped() -> list[str]:
    """The names of the recipes that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def find(recipe: str) -> Path:
    """The file of a recipe given by name (`tiny_cpu`) or path."""
    path, named = path_from(recipe, "the recipe"), FOLDER / f"{recipe}.toml"
    if named.is_file():
        return named
    if path.suffix == ".toml" or path.is_file():
        return path
    raise UserError(f"no recipe called {recipe!r}{nearest(recipe, shipped())}")


def table(recipe: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A section of a recipe, or an empty one; it must be a table of settings."""
    found = recipe.get(name, {})
    if not isinstance(found, Mapping):
        raise UserError(f"[{name}] of the recipe must be a table of settings, not {found!r}")
    return dict(found)


def load_recipe(recipe: str, *, extends: str | None = None) -> dict[str, Any]:
    """The plain values of a recipe, laid over those of the recipe it `extends` (or of the one given here instead)."""
    found: dict[str, Any] = {}
    names = [recipe]
    while True:
        path = find(names[-1])
        own = load_toml(path)
        base = own.pop("extends", None)
        if extends is not None and len(names) == 1:
            base = extends
        found = merge(own, found)
        if base is None:
            return found
        if not isinstance(base, str):
            raise UserError(f"extends of recipe {names[-1]} takes the name of a recipe, not {base!r}")
        beside = path.parent / base
        names.append(str(beside) if beside.suffix == ".toml" and beside.is_file() else base)
        if names[-1] in names[:-1]:
            raise UserError(f"recipes extend each other in a circle: {', '.join(names)}")
