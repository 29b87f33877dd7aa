"""The settings of the energy compass: its training (two objectives) and its validation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tsdfm.engine.settings import LoopSettings, OptimSettings
from tsdfm.errors import UserError
from tsdfm.nn.settings import NetSettings, Shape
from tsdfm.ranges import SEED
from tsdfm.settings import ModelPath, Settings, option, required


def pairs(texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The `name=value` of each text; one text may hold several, parted by commas."""
    for text in (part for whole in texts for part in whole.split(",")):
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UserError(f"strategies are given as name=value, not {text!r}")
        yield name.strip(), value.strip()


def number(value: str, name: str) -> float:
    """A finite number inside a setting, or one clear line."""
    try:
        found = float(value)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise UserError(f"strategy {name} has no number where one is needed: {value!r}")
    return found


@dataclass(frozen=True, kw_only=True)
class CompassNet(NetSettings):
    """A velocity network's sizes with half its blocks: 768 gives the paper's 6."""

    depth: int | None = option(None, "blocks; none gives half the velocity network's of this width")
    dropout: float = option(0.0, "dropout while training; it hits a state and its negative differently, so none")

    def shape(self) -> Shape:
        whole = super().shape()
        return whole if self.depth else replace(whole, depth=max(1, round(whole.depth / 2)))


@dataclass(frozen=True, kw_only=True)
class CompassLoop(LoopSettings):
    """The loop's settings with the paper's batch, and the best checkpoint by strategy accuracy + smooth_pct."""

    steps: int = option(50_000, "optimiser steps")
    batch: int = option(64, "positives per optimiser step, over all processes together")
    micro: int | None = option(None, "positives per device per forward, each with its negatives (none: all at once)")
    best: str = option("shortfall", "metric of the best checkpoint, lower is better: 2 − (strategy_acc + smooth_pct)")


@dataclass(frozen=True, kw_only=True)
class CompassOptim(OptimSettings):
    """The optimiser with the paper's values for the compass; the average of the weights is ours."""

    lr: float = option(1e-4, "peak learning rate")
    beta2: float = option(0.999, "decay of AdamW's second moment")
    weight_decay: float = option(0.01, "decay of matrices; vectors, norms and embeddings have none")
    warmup: int = option(5000, "steps of linear warm-up")
    ema: float = option(0.999, "decay of the averaged weights; 0 turns them off")


@dataclass(frozen=True, kw_only=True)
class NegativeSettings(Settings):
    """How a positive is corrupted. `mixture` and `ranges` name strategies of the table in `compass/negatives.py`."""

    mixture: tuple[str, ...] = option(
        ("time_downstep=4", "velocity_step=1", "random_replace=2", "frequency_replace=2", "token_repeat=2"),
        "strategies and their weights, name=weight (the default is the paper's 36.4, 9.1 and three times 18.2 %)",
    )
    ranges: tuple[str, ...] = option((), "other rate ranges than the strategies' own, name=low:high")
    beta: float = option(3.0, "rates are low + (high − low)·Beta(1, beta); 1 is uniform", above=0)
    downstep_beta: float = option(3.0, "the same for time_downstep's δ", above=0)
    floor: float = option(0.1, "least share of positions a token corruption changes", low=0, high=1)
    floor_of: Literal["revealed", "length"] = option("revealed", "what the floor is a share of")
    levels: tuple[float, ...] = option(
        tuple(2.0**-k for k in range(10, 3, -1)), "step sizes h that velocity_step goes back and forth", above=0, high=1
    )
    forward: Literal["euler", "reconstruct"] = option(
        "euler", "velocity_step's way forward: the teacher's Euler step, or a draw at just the positions it un-revealed"
    )
    bins: int = option(16, "unigram-frequency bins, of equal width in the logarithm of the count", low=1, high=2**16)
    count_rows: int = option(
        200_000, "rows of the training split that token frequencies are counted on, evenly spread", low=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.weights() or not sum(self.weights().values()) > 0:
            raise UserError("the mixture of negatives is empty: give at least one name=weight above 0")
        for name, (low, high) in self.rates().items():
            if not 0 <= low <= high <= 1:
                raise UserError(f"the range of {name} must lie in 0 to 1, low first, not {low}:{high}")
        if not self.levels:
            raise UserError("levels takes at least one step size")

    def weights(self) -> dict[str, float]:
        """The mixture as {name: weight}."""
        found = {name: number(value, name) for name, value in pairs(self.mixture)}
        if any(weight < 0 for weight in found.values()):
            raise UserError(f"the weights of a mixture may not be negative: {', '.join(self.mixture)}")
        return found

    def rates(self) -> dict[str, tuple[float, float]]:
        """The ranges that were given, as {name: (low, high)}."""
        out = {}
        for name, value in pairs(self.ranges):
            low, colon, high = value.partition(":")
            if not colon:
                raise UserError(f"a range is given as name=low:high, not {name}={value}")
            out[name] = (number(low, name), number(high, name))
        return out


@dataclass(frozen=True, kw_only=True)
class RatioSettings(Settings):
    """The objective `ratio`: the true x_{t+h} against jumps of a model from the same x_t."""

    proposer: ModelPath | None = option(
        None, "the student or teacher whose jumps are the negatives; none is the teacher"
    )
    n: int = option(3, "jumps to tell the true state from", low=1, high=2**16)
    levels: tuple[float, ...] = option((0.25, 0.125, 0.0625, 0.03125), "step sizes h", above=0, high=1)
    t_min: float = option(0.2, "earliest time t of the state that is jumped from", low=0, high=1)
    lambda_reg: float = option(0.01, "weight of E(x)² of the positive", low=0)
    jump: str = option("auto", "the proposer's jump; auto is its method's own")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.levels:
            raise UserError("ratio.levels takes at least one step size")
        if not self.t_min <= 1 - max(self.levels):
            raise UserError(f"ratio.t_min {self.t_min} leaves no room for a step of {max(self.levels)} before t = 1")


@dataclass(frozen=True, kw_only=True)
class CompassSettings(Settings):
    """The compass stage: an energy model trained to tell flow states of real text from corrupted ones."""

    START = "compass"  # which of a bundle's models its folder means in init_from

    tokens: Path = required("the tokens folder to train on")
    teacher: ModelPath = required("the teacher's run: gives source and schedule, and makes the velocity_step negatives")
    out: Path = required("folder for the run")
    objective: Literal["nce", "ratio"] = option("nce", "the paper's, or the true next state against a model's jumps")
    negatives: int = option(12, "negatives of each positive (objective nce)", low=1, high=2**16)
    lambda_reg: float = option(1.0, "weight of E(x_t)²", low=0)
    lambda_order: float = option(1.0, "weight of the time-ordering hinge", low=0)
    gamma: float = option(0.3, "margin of the hinge for one unit of δ", low=0)
    delta_min: float = option(0.05, "smallest δ of the hinge", low=0, high=1)
    delta_max: float = option(0.5, "largest δ of the hinge", low=0, high=1)
    t_floor: float = option(0.01, "earliest time an earlier state is taken at", low=0, below=1)
    clean: float = option(0.1, "share of positives that are the clean text, t = 1", low=0, high=1)
    eval_rows: int = option(256, "held-out rows of an evaluation", low=1)
    init: Literal["fresh", "teacher"] = option("fresh", "start from random weights, or the teacher's lower blocks")
    init_from: ModelPath | None = option(
        None, "start from the compass of this run, checkpoint or bundle (a new run, not a resume)"
    )
    resume: bool = option(False, "go on from the newest checkpoint in --out")
    corrupt: NegativeSettings = option(NegativeSettings(), "the negatives of objective nce")
    ratio: RatioSettings = option(RatioSettings(), "the objective ratio")
    net: CompassNet = option(CompassNet(), "the network")
    loop: CompassLoop = option(CompassLoop(), "the training loop")
    optim: CompassOptim = option(CompassOptim(), "the optimiser")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delta_min > self.delta_max:
            raise UserError(f"δ goes from {self.delta_min} to {self.delta_max}: give the smallest first")


@dataclass(frozen=True, kw_only=True)
class ValidateSettings(Settings):
    """Examine a compass on held-out rows, as the paper's appendix does; writes into the compass's run folder."""

    compass: ModelPath = required("the compass's run folder, or one of its checkpoints")
    tokens: Path | None = option(None, "the tokens folder; none is the one it was trained on")
    teacher: ModelPath | None = option(None, "the teacher for velocity_step; none is the one it was trained with")
    rows: int = option(200, "held-out rows whose energy is followed over time", low=2, high=2**24)
    times: int = option(20, "random times of each of those rows, besides t = 1", low=2, high=2**16)
    pairs: int = option(1130, "pairs of a state and its corruption for each strategy", low=1, high=2**24)
    candidate_rows: int = option(
        64, "rows of each (t, h) at which the teacher's candidates are compared", low=1, high=2**24
    )
    choose: Literal["best", "newest"] = option("best", "which checkpoint of a run")
    seed: int = option(0, "seed of the noise", **SEED)
    device: str = option("auto", "auto, cpu, cuda or cuda:N")
