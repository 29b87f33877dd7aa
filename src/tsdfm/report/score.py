"""What judges and histograms say of a cell's texts: the fields of a row.

The story world's judge comes first where there is a story world; its fields, or else those of the first other judge,
stand in the row itself, and every judge's under `judges` by its fingerprint.
"""

from __future__ import annotations

from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from tsdfm.corpus.world import world_named
from tsdfm.judges import Judge, Score
from tsdfm.judges.world import WorldJudge
from tsdfm.report.book import book_at, fields_of, judge_named
from tsdfm.report.cells import Cell, Cells
from tsdfm.report.metrics import judge_fields
from tsdfm.report.settings import MeasureSettings
from tsdfm.report.stories import judge_stories

SCORES = "scores.jsonl"


class Bench:
    """The judges of a measurement, loaded when first asked, and the cells they have already seen."""

    def __init__(self, settings: MeasureSettings, cells: Cells | None = None) -> None:
        self.settings = settings
        self.cells = cells or Cells()
        self._judges: list[Judge] | None = None

    def judges(self) -> list[Judge]:
        """The story world's judge, if there is one, and then the others."""
        if self._judges is None:
            world: list[Judge] = [WorldJudge(world_named(self.settings.world))] if self.settings.world else []
            others = (judge_named(spec, self.settings.device) for spec in self.settings.judges)
            self._judges = list({judge.fingerprint: judge for judge in (*world, *others)}.values())
        return self._judges

    def scores(self, cell: Cell, judge: Judge) -> list[Score]:
        """A judge's scores of a cell; those of a network are kept beside the cells, as they cost time."""
        if isinstance(judge, WorldJudge) or self.cells.folder is None:
            return judge.score(cell.texts, prefixes=cell.prefixes)
        console, path = Console(stderr=True), self.cells.folder / SCORES
        with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
            job = bar.add_task(f"{judge.name} reads", total=len(cell.texts))
            return book_at(path).score(
                judge, cell.texts, cell.prefixes, on_done=lambda done, _: bar.update(job, completed=done)
            )

    def fields(self, cell: Cell) -> dict[str, Any]:
        """The fields of a row that are about its texts."""
        rows = cell.rows()
        own = [len(row) for row in rows]
        found = {judge.fingerprint: judge_fields(self.scores(cell, judge), own) for judge in self.judges()}
        out: dict[str, Any] = {"samples": len(cell.texts)}
        for name in list(found)[:1]:
            out |= {"judge": name, **found[name]}
        if self.settings.world:
            out |= story_fields(cell, self.settings.world)
        return out | fields_of(rows) | {"judges": found}

    def perplexities(self, cell: Cell, judge: Judge | None = None) -> Tensor:
        """A judge's (the first one's) perplexity of each text [n], NaN for one without a scored token."""
        scores = self.scores(cell, judge or self.judges()[0])
        nll = torch.tensor([s.nll for s in scores], dtype=torch.float64)
        tokens = torch.tensor([s.tokens for s in scores], dtype=torch.float64)
        return torch.where(tokens > 0, (nll / tokens).clamp_max(709.0).exp(), torch.nan)


def story_fields(cell: Cell, world: str) -> dict[str, Any]:
    """What the story world says of whole stories; with prefixes, perplexity and NLL are those of the continuation."""
    found = judge_stories(cell.texts, world_named(world))
    if cell.prefixes is None:
        return found
    return {name: found[name] for name in ("valid", "valid_interval", "broken_rules")}
