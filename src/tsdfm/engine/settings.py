"""The dials of the training loop and of its optimiser, shared by every stage that trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tsdfm.errors import UserError
from tsdfm.settings import option


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """How long, how much at a time, on what, and how often to look and to save."""

    steps: int = option(1000, "optimiser steps")
    batch: int = option(32, "rows per optimiser step, over all processes together")
    micro: int | None = option(None, "rows per device per forward; smaller uses less memory (none: all at once)")
    seed: int = option(0, "seed of the data order, the noise and the dropout")
    device: str = option("auto", "auto, cpu, cuda or cuda:N")
    precision: Literal["auto", "bf16", "fp32"] = option("auto", "auto is bf16 on a GPU that has it, else fp32")
    compile: bool = option(False, "compile the network with torch.compile")
    graphs: bool = option(True, "with compile on a GPU, replay recorded passes (CUDA graphs): same results, sooner")
    parallel: Literal["auto", "ddp", "fsdp"] = option("auto", "how torchrun's processes share the work (auto: ddp)")
    log_every: int = option(50, "steps between lines of metrics.jsonl")
    eval_every: int = option(500, "steps between evaluations; 0 is only at the end")
    save_every: int = option(500, "steps between checkpoints; 0 is only at the end and at a new best")
    keep: int = option(2, "newest checkpoints to keep; the best is kept besides")
    best: str = option("elbo", "metric of the evaluation that names the best checkpoint, lower is better")
    max_bad: int = option(20, "stop after this many non-finite gradients in a row")
    tensorboard: bool = option(False, "also write TensorBoard files (needs the extra)")
    wandb: bool = option(False, "also send metrics and settings to Weights & Biases (needs the extra)")

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "log_every", "keep", "max_bad"):
            _at_least(name, getattr(self, name), 1)
        for name in ("eval_every", "save_every"):
            _at_least(name, getattr(self, name), 0)
        if self.micro is not None:
            _at_least("micro", self.micro, 1)


@dataclass(frozen=True, kw_only=True)
class OptimSettings:
    """AdamW or Muon with warm-up, cosine decay to a floor, clipping, and a moving average of the weights."""

    rule: Literal["adamw", "muon"] = option("adamw", "muon: the blocks' matrices by Muon, the rest by AdamW")
    lr: float = option(3e-4, "peak learning rate")
    beta1: float = option(0.9, "decay of AdamW's first moment")
    beta2: float = option(0.95, "decay of AdamW's second moment")
    eps: float = option(1e-8, "AdamW's epsilon")
    momentum: float = option(0.95, "decay of Muon's momentum")
    weight_decay: float = option(0.03, "decay of matrices; vectors, norms and embeddings have none")
    warmup: int = option(100, "steps of linear warm-up")
    floor: float = option(0.1, "where the cosine ends, as a share of the peak")
    clip: float = option(1.0, "largest gradient norm; 0 turns clipping off")
    ema: float = option(0.9999, "decay of the averaged weights; 0 turns them off")
    ema_warmup: bool = option(True, "let the average follow fast at first: decay min(ema, (1+n)/(10+n))")

    def __post_init__(self) -> None:
        if not self.lr > 0 or not self.eps > 0:
            raise UserError(f"lr and eps must be above 0, not {self.lr} and {self.eps}")
        for name in ("beta1", "beta2", "momentum", "ema"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 0 and below 1, not {getattr(self, name)}")
        if not 0 <= self.floor <= 1:
            raise UserError(f"floor is a share of the peak, from 0 to 1, not {self.floor}")
        for name in ("weight_decay", "warmup", "clip"):
            _at_least(name, getattr(self, name), 0)


def _at_least(name: str, value: float, least: int) -> None:
    if not value >= least:
        raise UserError(f"{name} must be at least {least}, not {value}")
