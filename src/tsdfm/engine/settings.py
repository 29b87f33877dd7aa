"""The dials of the training loop and of its optimiser, shared by every stage that trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tsdfm.ranges import SEED
from tsdfm.settings import Settings, option


@dataclass(frozen=True, kw_only=True)
class LoopSettings(Settings):
    """How long, how much at a time, on what, and how often to look and to save."""

    steps: int = option(1000, "optimiser steps", low=1, high=10**9)
    batch: int = option(32, "rows per optimiser step, over all processes together", low=1, high=2**20)
    micro: int | None = option(None, "rows per device per forward; smaller uses less memory (none: all at once)", low=1)
    seed: int = option(0, "seed of the data order, the noise and the dropout", **SEED)
    device: str = option("auto", "auto, cpu, cuda or cuda:N")
    precision: Literal["auto", "bf16", "fp32"] = option("auto", "auto is bf16 on a GPU that has it, else fp32")
    compile: bool = option(False, "compile the network with torch.compile")
    graphs: bool = option(True, "with compile on a GPU, replay recorded passes (CUDA graphs): same results, sooner")
    parallel: Literal["auto", "ddp", "fsdp"] = option("auto", "how torchrun's processes share the work (auto: ddp)")
    log_every: int = option(50, "steps between lines of metrics.jsonl", low=1)
    eval_every: int = option(500, "steps between evaluations; 0 is only at the end", low=0)
    save_every: int = option(500, "steps between checkpoints; 0 is only at the end and at a new best", low=0)
    keep: int = option(2, "newest checkpoints to keep; the best is kept besides", low=1)
    best: str = option("elbo", "metric of the evaluation that names the best checkpoint, lower is better")
    max_bad: int = option(20, "stop after this many non-finite gradients in a row", low=1)
    tensorboard: bool = option(False, "also write TensorBoard files (needs the extra)")
    wandb: bool = option(False, "also send metrics and settings to Weights & Biases (needs the extra)")


@dataclass(frozen=True, kw_only=True)
class OptimSettings(Settings):
    """AdamW or Muon with warm-up, cosine decay to a floor, clipping, and a moving average of the weights."""

    rule: Literal["adamw", "muon"] = option("adamw", "muon: the blocks' matrices by Muon, the rest by AdamW")
    lr: float = option(3e-4, "peak learning rate", above=0)
    beta1: float = option(0.9, "decay of AdamW's first moment", low=0, below=1)
    beta2: float = option(0.95, "decay of AdamW's second moment", low=0, below=1)
    eps: float = option(1e-8, "AdamW's epsilon", above=0)
    momentum: float = option(0.95, "decay of Muon's momentum", low=0, below=1)
    weight_decay: float = option(0.03, "decay of matrices; vectors, norms and embeddings have none", low=0)
    warmup: int = option(100, "steps of linear warm-up", low=0)
    floor: float = option(0.1, "where the cosine ends, as a share of the peak", low=0, high=1)
    decay: int | None = option(
        None, "steps at the end in which the rate falls, after it has held its peak; none: all after warm-up", low=1
    )
    clip: float = option(1.0, "largest gradient norm; 0 turns clipping off", low=0)
    ema: float = option(0.9999, "decay of the averaged weights; 0 turns them off", low=0, below=1)
    ema_warmup: bool = option(True, "let the average follow fast at first: decay min(ema, (1+n)/(10+n))")
