"""The settings of `tsdfm pipeline`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tsdfm.errors import UserError
from tsdfm.settings import RecipeName, Settings, option, required


@dataclass(frozen=True, kw_only=True)
class PipelineSettings(Settings):
    """Which recipe to run, and where."""

    recipe: RecipeName = required("a recipe that comes with tsdfm, or a TOML file")
    out: Path | None = option(None, "folder for everything it makes; none is runs and the recipe's name")
    set: tuple[str, ...] = option((), "override a setting, as in teacher.loop.steps=100; may be given many times")
    verbose: bool = option(False, "show all that the stages have to say, not a line or two of each (also -v)")
    jobs: int = option(
        1, "models to train at a time, each in a process of its own: for small ones on a large GPU", low=1, high=1024
    )
    only: str | None = option(None, "train this one model alone, by the name of its folder, as in ts-dfm-uniform")

    retry: int = option(
        1, "with --jobs: how often a model whose process broke off is begun again, from its checkpoint", low=0
    )

    limit: float | None = option(
        None,
        "with --jobs: seconds of training, after which all is saved and stopped; the same command goes on",
        above=0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.limit is not None and (self.jobs < 2 or self.only is not None):
            raise UserError("limit needs --jobs 2 or more, without --only")

    @property
    def folder(self) -> Path:
        """Where everything goes."""
        return self.out if self.out is not None else Path("runs") / Path(self.recipe).stem
