"""The measuring stage: sample a model at several step counts, judge the texts, and lay real text beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tsdfm.corpus.world import world_named
from tsdfm.engine.manifest import write_json
from tsdfm.errors import UserError
from tsdfm.report.metrics import entropy_bits, mean_interval
from tsdfm.report.stories import judge_stories
from tsdfm.samples.model import Samples, TextModel, load
from tsdfm.settings import option
from tsdfm.tokens.rows import TokenRows


@dataclass(frozen=True, kw_only=True)
class MeasureSettings:
    """What to sample and how to judge it."""

    steps: tuple[int, ...] = option((4, 16, 64, 256), "step counts")
    samples: int = option(256, "texts for each step count")
    seed: int = option(0, "seed of the sampling")
    temperature: float = option(1.0, "sampling temperature")
    top_p: float = option(1.0, "keep the most likely tokens up to this share of the probability")
    world: str = option("small", "story world whose exact judge reads the texts: full or small")
    show: int = option(2, "texts to keep as examples in each row")

    def __post_init__(self) -> None:
        if not self.steps or min(self.steps) < 1 or self.samples < 1:
            raise UserError("steps takes step counts of at least 1, and samples must be at least 1")


def measure(settings: MeasureSettings, model: Path, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """One row for each step count."""
    made = load(model)
    rows = []
    for steps in settings.steps:
        samples = made.sample(
            settings.samples, steps, settings.seed, temperature=settings.temperature, top_p=settings.top_p
        )
        rows.append(row_of(settings, made, steps, samples))
        say(f"{made.method}, {made.velocity.spec.source}: {steps} steps, valid {rows[-1]['valid']:.3f}")
    return rows


def row_of(settings: MeasureSettings, made: TextModel, steps: int, samples: Samples) -> dict[str, Any]:
    """The row of one cell, with all that is needed to make it again."""
    spec = made.velocity.spec
    tokens = samples.tokens[:, spec.anchor :]
    return {
        "method": made.method,
        "source": spec.source,
        "steps": steps,
        "nfe": samples.nfe,
        **judged(settings, samples.texts, [written(row, made.tokenizer.end_of_text) for row in tokens]),
        "length": spec.length,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "draw": "float32 weights, 53-bit uniforms",
        "seed": settings.seed,
        "checkpoint": made.velocity.sha256[:16],
        "tokens_per_s": settings.samples * spec.length / samples.seconds,
        "texts": samples.texts[: settings.show],
    }


def real_row(settings: MeasureSettings, tokens: Path) -> dict[str, Any]:
    """Held-out text, measured the same way: the target."""
    rows = TokenRows(tokens, "valid")
    count = min(settings.samples, len(rows))
    texts, kept = [], []
    for i in range(count):
        row = torch.from_numpy(rows[i].astype("int64"))[rows.anchor :]
        kept.append(written(row, rows.end_of_text))
        texts.append(rows.tokenizer.decode(kept[-1]))
    found = judged(settings, texts, kept)
    return {"method": "held-out text", "source": None, "steps": None, "nfe": None, **found, "texts": texts[:1]}


def judged(settings: MeasureSettings, texts: Sequence[str], rows: Sequence[Tensor]) -> dict[str, Any]:
    """What the judge and the histograms say."""
    entropy, low, high = mean_interval(entropy_bits(rows))
    return {
        "samples": len(texts),
        **judge_stories(texts, world_named(settings.world)),
        "entropy_bits": entropy,
        "entropy_interval": [low, high],
    }


def written(row: Tensor, end: int) -> Tensor:
    """A row without the end-of-text at its end, that is its padding."""
    ends = (row != end).nonzero()
    return row[: int(ends[-1]) + 1] if len(ends) else row[:0]


def write_metrics(report: Path, rows: list[dict[str, Any]]) -> Path:
    """`metrics.json`: a list of rows."""
    return write_json(report / "metrics.json", rows)
