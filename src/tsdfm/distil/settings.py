"""The settings of distillation and of navigation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from tsdfm.engine.settings import LoopSettings, OptimSettings
from tsdfm.errors import UserError
from tsdfm.settings import ModelPath, Settings, option, required

LEVELS = 11
"""Step sizes h = 2^0 … 2^−10."""
Navigation = Literal["sequence", "token", "sequence-to-token"]
PolicyName = Literal["blind", "sequence", "token", "sequence-to-token"]


@dataclass(frozen=True, kw_only=True)
class NavigateSettings(Settings):
    """Navigate, the paper's appendix C: its defaults first, then what goes beyond it."""

    tau: float = option(0.2, "τ: jumps that start before this time are blind", low=0, high=1)
    k: int = option(5, "K: candidates of a midpoint", low=1, high=2**16)
    t_min: float = option(0.8, "T_min: lowest base temperature", above=0)
    delta_t: float = option(0.4, "Δ_T: how much a sure model raises the base temperature", low=0)
    lambda_min: float = option(0.7, "λ_min: factor on the temperature of the first candidate", above=0)
    lambda_max: float = option(1.3, "λ_max: factor on the temperature of the last; both 1 makes all alike", above=0)
    entropy: Literal["batch", "vocab"] = option("batch", "entropy is divided by the batch's largest, or by log |V|")
    selector: Literal["lowest", "boltzmann", "random"] = option(
        "lowest", "lowest energy; a draw ∝ exp(−E/T_E); or any, always accepted, without a compass (the control)"
    )
    energy_temperature: float = option(1.0, "T_E of the boltzmann selector", above=0)
    beta_0: float = option(1.0, "β_0: guidance of the token phase at t = 0 (the paper gives no value)", low=0)
    alpha_beta: float = option(0.5, "α_β: how fast that guidance falls with t", low=0)
    alpha_soft: float = option(0.5, "α_soft: softens the change of a replacement's probability", low=0)
    p_max: float = option(0.95, "p_max: most a replacement's probability may be", low=0, high=1)
    epsilon: float = option(0.1, "ε_safe: rise in energy the safeguard tolerates", low=0)
    refine: Literal["all", "jumped"] = option("all", "jumped: only positions that have jumped, so jumps stay as many")
    tau_end: float | None = option(
        None, "τ goes linearly from tau to this over the training; none leaves it", low=0, high=1
    )
    blocks: int = option(
        0, "choose in so many blocks of the text, each from any candidate; 0: whole candidates", low=0, high=2**20
    )
    agree: float = option(0.0, "stop drawing candidates once their energies lie within this; 0 always draws K", low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.blocks and (self.selector == "random" or self.agree):
            raise UserError("blocks needs a compass and all K candidates: no random, no agree")
        if self.agree and self.selector == "random":
            raise UserError("selector random asks for no energies, so agree has nothing to compare: leave it at 0")


@dataclass(frozen=True, kw_only=True)
class StudentLoop(LoopSettings):
    """The loop's settings with FS-DFM's batch."""

    batch: int = option(96, "rows per optimiser step, over all processes together")


@dataclass(frozen=True, kw_only=True)
class StudentOptim(OptimSettings):
    """The optimiser with FS-DFM's values. The averaged weights are the semi-teacher, so they may not be off."""

    lr: float = option(1e-5, "peak learning rate")
    warmup: int = option(10_000, "steps of linear warm-up")
    ema: float = option(0.9995, "decay of the averaged weights, the semi-teacher", above=0, below=1)
    ema_warmup: bool = option(False, "let the average follow fast at first: decay min(ema, (1+n)/(10+n))")


@dataclass(frozen=True, kw_only=True)
class DistilSettings(Settings):
    """What every distillation has: tokens, a model to start from, a loop. How it distils is a method's own."""

    START: ClassVar[str] = "student"  # which of a bundle's models its folder means in init_from

    tokens: Path = required("the tokens folder to train on")
    init_from: ModelPath = required("run, checkpoint or bundle to start from")
    out: Path = required("folder for the run")
    name: str | None = option(None, "what the model is called in samples and tables; none is the method's own word")
    dropout: float | None = option(None, "dropout while training; none is what init_from has", low=0, below=1)
    checkpoint: bool = option(False, "recompute activations in the backward pass: less memory, a third more time")
    eval_rows: int = option(256, "held-out rows of an evaluation", low=1)
    eval_times: int = option(8, "times at which each held-out row is looked at for the bound", low=1, high=2**16)
    resume: bool = option(False, "go on from the newest checkpoint in --out")
    allow_changed: bool = option(False, "resume although tokens or a model that the training reads have changed")
    loop: LoopSettings = option(LoopSettings(), "the training loop")
    optim: OptimSettings = option(OptimSettings(), "the optimiser")


@dataclass(frozen=True, kw_only=True)
class StudentSettings(DistilSettings):
    """A few-step model distilled from itself by RK-4 chains; how their midpoints are made is a method's own."""

    init_from: ModelPath = required(
        "run, checkpoint or bundle to start from: a teacher (DFM init) or a student (FS-DFM)"
    )
    teacher: ModelPath | None = option(None, "the frozen teacher, for target teacher; none is init_from if that is one")
    target: Literal["data", "teacher"] = option("data", "what the smallest step learns from")
    estimator: Literal["rk4", "heun", "euler"] = option("rk4", "how the larger steps' target is made")
    divergence: Literal["forward", "reverse"] = option(
        "reverse", "reverse: KL(student ‖ target), the paper's eq. (4); forward: KL(target ‖ student), as FS-DFM's code"
    )
    average: Literal["logits", "probabilities"] = option("logits", "what is averaged over the stages")
    levels: Literal["inverse", "uniform"] = option("inverse", "h = 2^0 … 2^−10 with weights ∝ 1/h, or all alike")
    level_weights: tuple[float, ...] = option((), f"weights of the {LEVELS} step sizes themselves, h = 1 first", low=0)
    share: float | None = option(
        None, "share of rows with a large step; none is what the weights of h say", low=0, high=1
    )
    fresh: Literal["random", "fit"] = option(
        "fit",
        "new weights of a DFM init: fitted, so that the student begins as its teacher, or random",
    )
    steps_from: ModelPath | None = option(
        None, "take the new weights of a DFM init, those of the step size, from this student; none: as fresh says"
    )
    record: bool = option(
        False,
        "on CUDA, with loop.compile and loop.graphs, replay a large step's target as one recording: same results, less "
        "work for the host, a little more memory. For small networks, slow or shared hosts; elsewhere it does nothing",
    )
    loop: StudentLoop = option(StudentLoop(), "the training loop")
    optim: StudentOptim = option(StudentOptim(), "the optimiser")
