"""bf16 where it helps, float32 masters always, and a torch RNG that needs no saving."""

from __future__ import annotations

import contextlib

import torch

from tsdfm.errors import UserError
from tsdfm.settings import nearest

MASK = (1 << 64) - 1
PRECISIONS = ("auto", "bf16", "fp32")


def use_bf16(precision: str, device: torch.device) -> bool:
    """`auto` is bf16 on a GPU that computes in it natively, float32 elsewhere."""
    if precision not in PRECISIONS:
        raise UserError(f"unknown precision {precision!r}{nearest(precision, PRECISIONS)}")
    if precision == "fp32":
        return False
    native = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    if precision == "bf16" and device.type == "cuda" and not native:
        raise UserError("this GPU does not compute in bf16: use --precision fp32")
    return native or precision == "bf16"


def autocast(bf16: bool, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Matrix products in bf16; parameters, gradients and optimiser state stay float32."""
    return torch.autocast(device.type, torch.bfloat16) if bf16 else contextlib.nullcontext()


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed torch's own RNG (dropout) for one step, as a hash of (seed, step, rank).

    A resumed run then draws what the unbroken one drew, with no RNG state in the checkpoint.
    """
    word = 0
    for part in (seed, step, rank):  # splitmix64, so that neighbouring steps share nothing
        word = (word ^ part) + 0x9E3779B97F4A7C15 & MASK
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & MASK
        word = (word ^ word >> 27) * 0x94D049BB133111EB & MASK
        word ^= word >> 31
    torch.manual_seed(word & MASK >> 1)
