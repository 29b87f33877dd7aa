"""`tsdfm compass validate`: what the paper's appendix asks of a compass, on held-out rows.

Writes into the compass's run folder `validation.json` and `energy.svg`, and prints the tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from tsdfm import terminal
from tsdfm.compass.exam import Curve, Exam
from tsdfm.compass.figure import energy_figure
from tsdfm.compass.model import Compass, load_compass
from tsdfm.compass.negatives import by_strategy
from tsdfm.compass.ratio import tally
from tsdfm.compass.settings import CompassSettings, ValidateSettings
from tsdfm.compass.statistics import curve_summary
from tsdfm.compass.table import show
from tsdfm.compass.task import make_negatives
from tsdfm.errors import UserError
from tsdfm.metrics.intervals import wilson
from tsdfm.nn.velocity import Velocity, load_velocity, run_folder
from tsdfm.ranges import Range
from tsdfm.settings import build, to_dict
from tsdfm.store.bundle import whereabouts
from tsdfm.store.files import read_json, write_json, write_text
from tsdfm.store.hashes import check_inputs, remember
from tsdfm.store.manifest import read_manifest
from tsdfm.store.schema import Count, checked
from tsdfm.tokens.rows import TokenRows

VALIDATION = "validation.json"
AGAIN = "run `tsdfm compass validate` again"
PART = 64  # questions put at once
CANDIDATE_TIMES = (0.2, 0.4, 0.6, 0.8)


def validate(settings: ValidateSettings, console: Console | None = None) -> dict[str, Any]:
    """Examine a compass; returns what `validation.json` holds."""
    compass = load_compass(settings.compass, settings.device, choose=settings.choose)
    checkpoint = compass.checkpoint or settings.compass
    trained = build(CompassSettings, read_manifest(checkpoint).get("settings") or {})
    folder = run_folder(checkpoint)
    tokens, teacher = inputs_of(settings, trained, folder)
    other = trained.ratio.proposer if trained.objective == "ratio" else None
    proposer = (whereabouts(other, folder, hashes_had(folder).get("proposer")) or other) if other else teacher
    hashes = check_inputs({"tokens": tokens}, folder)
    velocity = _velocity(teacher, compass)
    exam = exam_for(compass, trained, tokens, velocity, settings.seed)
    found = {
        "objective": compass.spec.objective,
        "source": compass.spec.source,
        "checkpoint": checkpoint.name,
        "seed": settings.seed,
        "settings": to_dict(settings),
        **accuracy(exam, compass, settings.pairs),
        **monotonicity(exam, compass, settings.rows, settings.times),
        "candidates": candidates(
            exam, compass, velocity if proposer == teacher else _velocity(proposer, compass), trained, settings
        ),
    }
    remember(folder, hashes)
    write_text(folder / "energy.svg", energy_figure(found))
    write_json(folder / VALIDATION, found)
    show(found, console or terminal.console())
    return found


def hashes_had(folder: Path) -> dict[str, str]:
    """The hashes of what the compass in `folder` was trained with, by name."""
    return {name: about["sha256"] for name, about in (read_manifest(folder).get("inputs") or {}).items()}


def inputs_of(settings: ValidateSettings, trained: CompassSettings, folder: Path) -> tuple[Path, Path]:
    """The tokens and the teacher: as asked, or those of the training of the compass in `folder`, wherever they are."""
    had = hashes_had(folder)
    tokens = settings.tokens or whereabouts(trained.tokens, folder, had.get("tokens"))
    teacher = settings.teacher or whereabouts(trained.teacher, folder, had.get("teacher"))
    if tokens is None or teacher is None:
        name, gone = ("tokens", trained.tokens) if tokens is None else ("teacher", trained.teacher)
        raise UserError(f"no {name} at {gone}, as when the compass was trained, nor beside it: give --{name}")
    return tokens, teacher


Number = int | float
Bin = TypedDict("Bin", {"from": Number, "to": Number, "count": Count, "mean": Number | None, "std": Number | None})


class Validation(TypedDict):
    """What is read of `validation.json`."""

    source: str
    accuracy: dict[str, Number]
    bins: list[Bin]
    checkpoint: NotRequired[str]
    seed: NotRequired[int]
    settings: NotRequired[dict[str, Any]]
    intervals: NotRequired[dict[str, tuple[Number, Number]]]
    pairs: NotRequired[dict[str, Count]]
    samples: NotRequired[Annotated[int, Range(low=1)]]
    samples_with_violation: NotRequired[Count]
    adjacent_bins_monotone: NotRequired[Number]
    smoothness: NotRequired[Number]
    largest_violation: NotRequired[Number]
    energy_gap: NotRequired[Number]
    spearman: NotRequired[Number | None]
    pearson: NotRequired[Number | None]


def read_validation(path: Path) -> dict[str, Any]:
    """The results of an examination from their file, or one clear line."""
    return examined(read_json(path, AGAIN), path)


def examined(found: Any, path: Path) -> dict[str, Any]:
    """Results from the file at `path`, if they are whole."""
    return dict(checked(found, Validation, path, AGAIN))


def in_words(found: Mapping[str, Any]) -> str:
    """What a validation found, in one line."""
    right, bins = found["accuracy"].get("overall", math.nan), found.get("adjacent_bins_monotone", math.nan)
    return f"real below corrupted in {right:.1%} of pairs, falling with time in {bins:.0%} of bins (higher is better)"


def run(settings: ValidateSettings) -> Path:
    """The command: validate, and return the run folder that holds the results."""
    found, folder = validate(settings), run_folder(settings.compass)
    trained = build(CompassSettings, read_manifest(folder).get("settings") or {})
    words: list[str | Path]
    tokens, teacher = inputs_of(settings, trained, folder)
    words = ["--tokens", tokens, "--init-from", teacher]
    words += ["--policy", "sequence-to-token", "--compass", folder, "--out", folder.parent / "ts-dfm"]
    terminal.made(folder.name, in_words(found), folder / VALIDATION, "student", *words)
    return folder


def _velocity(path: Path, compass: Compass) -> Velocity:
    """A velocity network that belongs with the compass."""
    velocity = load_velocity(path, compass.device)
    compass.match(velocity.spec, f"the model in {path}")
    return velocity


def exam_for(compass: Compass, trained: CompassSettings, tokens: Path, teacher: Velocity, seed: int) -> Exam:
    """The held-out rows of `tokens`, corrupted as in training."""
    train, valid = TokenRows(tokens, "train"), TokenRows(tokens, "valid")
    if (valid.fingerprint, valid.anchor) != (compass.spec.tokenizer, compass.spec.anchor):
        raise UserError(f"{tokens} was made with another tokenizer or layout than the compass's: give its own tokens")
    negatives = make_negatives(trained.corrupt, train, compass.spec, teacher, trained.t_floor, compass.device)
    return Exam(valid, compass.spec, negatives, trained.clean, seed, compass.device)


def parts(count: int, what: str) -> Iterator[Tensor]:
    """Question numbers 0 … count − 1, a part at a time, with a bar that says how many are answered."""
    with terminal.progress(what, silent=terminal.quiet()) as told:
        for first in range(0, count, PART):
            yield torch.arange(first, min(first + PART, count))
            told(min(first + PART, count), count)


def accuracy(exam: Exam, compass: Compass, pairs: int) -> dict[str, Any]:
    """How often E(x_t) < E(x̃_t), by strategy, with 95 % intervals; `overall` is the mean over the judged ones."""
    asked = [exam.pairs(compass.energy, numbers) for numbers in parts(pairs, "pairs")]
    lower, void, changed = (torch.cat([getattr(p, name) for p in asked]).cpu() for name in ("lower", "void", "changed"))
    out: dict[str, Any] = {"accuracy": {}, "intervals": {}, "pairs": {}, "void_pairs": {}, "tokens_changed": {}}
    for s, name in enumerate(exam.negatives.names):
        real = ~void[:, s]
        right, count = int((lower[:, s] & real).sum()), int(real.sum())
        out["accuracy"][name] = right / count if count else 0.0
        out["intervals"][name] = list(wilson(right, count))
        out["pairs"][name], out["void_pairs"][name] = count, int(void[:, s].sum())
        out["tokens_changed"][name] = float(changed[:, s][real].double().mean()) if count else 0.0
    out["accuracy"]["overall"] = by_strategy(out["accuracy"], exam.negatives.judged or exam.negatives.names)
    return out


def monotonicity(exam: Exam, compass: Compass, rows: int, times: int) -> dict[str, Any]:
    """Energy against time on `rows` walks at `times` random times and t = 1."""
    curves = [exam.curve(compass.energy, numbers, times) for numbers in parts(rows, "energy against time")]

    def whole(pick: Callable[[Curve], Tensor]) -> Any:
        return torch.cat([pick(curve) for curve in curves]).cpu().numpy()

    energies = whole(lambda c: c.energies).astype(np.float64)
    return curve_summary(whole(lambda c: c.times), energies, whole(lambda c: c.same))


def candidates(
    exam: Exam, compass: Compass, proposer: Velocity, trained: CompassSettings, settings: ValidateSettings
) -> list[dict[str, Any]]:
    """By t and h: is the true x_{t+h} below the proposer's jumps, and how far apart those are in energy."""
    out = []
    for t in CANDIDATE_TIMES:
        for h in trained.ratio.levels:
            if t + h > 1.0:
                continue
            sums: dict[str, float] = {}
            for numbers in parts(settings.candidate_rows, f"candidates, t = {t}, h = {h}"):
                times, steps = (torch.full((len(numbers),), x, dtype=torch.float64) for x in (t, h))
                found = exam.candidates(
                    compass.energy, numbers, proposer, times, steps, trained.ratio.n, trained.ratio.jump
                )
                sums = {name: sums.get(name, 0.0) + value for name, value in tally(found).items()}
            share = sums["right"] / sums["pairs"] if sums["pairs"] else None
            spread = sums["spread"] / sums["rows"]
            out.append({"t": t, "h": h, "pairs": int(sums["pairs"]), "pair_accuracy": share, "spread": spread})
    return out
