"""The settings that every many-step method has in common: a network trained on rows of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from tsdfm.engine.settings import LoopSettings, OptimSettings
from tsdfm.nn.settings import NetSettings
from tsdfm.settings import ModelPath, Settings, option, required


@dataclass(frozen=True, kw_only=True)
class TeacherSettings(Settings):
    """A velocity network trained on rows of tokens. A method's own settings class adds what it minimises."""

    START: ClassVar[str] = "teacher"  # which of a bundle's models its folder means in init_from

    tokens: Path = required("the tokens folder to train on")
    out: Path = required("folder for the run")
    name: str | None = option(None, "what the model is called in samples and tables; none is the method's own word")
    source: Literal["uniform", "mask"] = option("uniform", "what x_0 is: random tokens, or [MASK] everywhere")
    schedule: str = option("poly:1", "κ(t): poly:N is t^N, or cosine, or geometric")
    eval_rows: int = option(256, "held-out rows of an evaluation", low=1)
    eval_times: int = option(8, "times at which each held-out row is looked at for the bound", low=1, high=2**16)
    init_from: ModelPath | None = option(
        None, "start from the weights of this run, checkpoint or bundle (a new run, not a resume)"
    )
    resume: bool = option(False, "go on from the newest checkpoint in --out")
    net: NetSettings = option(NetSettings(), "the network")
    loop: LoopSettings = option(LoopSettings(), "the training loop")
    optim: OptimSettings = option(OptimSettings(), "the optimiser")
