# mypy: ignore-errors
"""The kernel of `flow.RowNoise`, whose own code is its reference.

splitmix64 of (key of the row, counter of the place), 53 bits of it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

SIZE = 1024


@triton.jit
def _mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit(do_not_specialize=["salt", "start", "stride", "inner"])
def uniform_kernel(rows, out, salt, start, stride, inner, SIZE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    number = tl.load(rows + row).to(tl.uint64, bitcast=True)
    key = _mix(_mix(number + 0x9E3779B97F4A7C15) ^ salt.to(tl.int64).to(tl.uint64, bitcast=True))
    counter = (place + start + row * stride).to(tl.uint64)
    bits = _mix(_mix(key + counter * 0x9E3779B97F4A7C15) + key) >> 11
    value = bits.to(tl.int64).to(tl.float64) * 1.1102230246251565e-16
    tl.store(out + row * inner + place, value, mask=place < inner)


def launch(rows: Tensor, salt: int, start: int, shape: torch.Size, stride: int = 0) -> Tensor:
    """Uniforms of `shape` = [B, …] for row numbers [B]; `start` is the first counter, that of row b is b·stride on."""
    out = torch.empty(shape, dtype=torch.float64, device=rows.device)
    inner = shape[1:].numel()
    if len(out) and inner:
        uniform_kernel[(len(out), triton.cdiv(inner, SIZE))](
            rows.contiguous(), out, salt, start, stride, inner, SIZE=SIZE
        )
    return out
