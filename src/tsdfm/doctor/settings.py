"""The settings of `tsdfm doctor`."""

from __future__ import annotations

from dataclasses import dataclass

from tsdfm.settings import RecipeName, Settings, option


@dataclass(frozen=True, kw_only=True)
class DoctorSettings(Settings):
    """What to look at."""

    recipe: RecipeName | None = option(None, "also say what this recipe needs")
