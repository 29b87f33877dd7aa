"""`tsdfm pipeline RECIPE`: every stage the recipe has a section for, one after the other."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tsdfm.errors import UserError
from tsdfm.pipeline.plan import plan
from tsdfm.recipes import load_recipe
from tsdfm.settings import merge, option, required


@dataclass(frozen=True, kw_only=True)
class PipelineSettings:
    """Which recipe to run, and where."""

    recipe: str = required("a recipe that comes with tsdfm, or a TOML file")
    out: Path = option(Path("runs/demo"), "folder for everything it makes")
    set: tuple[str, ...] = option((), "override a setting, as in teacher.loop.steps=100; may be given many times")


def run(settings: PipelineSettings, say: Callable[[str], None] = print) -> Path:
    """Run every stage the recipe has a section for, and return the folder."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("a pipeline runs in one process: start only the training stage with torchrun")
    over = overrides(settings.set)
    recipe = merge(load_recipe(settings.recipe, extends=over.pop("extends", None)), over)
    for stage in plan(recipe, settings.out):
        say(f"── {stage.name}")
        stage.run()
    say(f"── done: {settings.out}")
    return settings.out


def overrides(pairs: tuple[str, ...]) -> dict[str, Any]:
    """`("teacher.loop.steps=100",)` as nested plain values; what is given more than once makes a list."""
    out: dict[str, Any] = {}
    seen: dict[str, list[str]] = {}
    for pair in pairs:
        path, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"--set takes section.name=value, not {pair!r}")
        earlier = seen.setdefault(path.strip(), [])
        earlier.append(value)
        nested: Any = value.split(",") if path.strip() == "sources" else value if len(earlier) == 1 else list(earlier)
        for part in reversed(path.strip().split(".")):
            nested = {part: nested}
        out = merge(out, nested)
    return out
