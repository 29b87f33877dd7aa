"""Weights made small for shipping: int8 or bf16 in a safetensors file, float32 again when they are read.

Only large matrices are packed: at least two dimensions and 4 096 numbers. Vectors (norms, biases) and small matrices
stay float32; they weigh nothing and steer much.

int8 is symmetric, with one float32 scale for each row w of a matrix, which is an output of a linear layer or a token of
an embedding (more than two dimensions: each line along the last):

    s = max |w| / 127,    q = round(w / s) ∈ {−127, …, 127},    w' = q·s,    |w' − w| ≤ s / 2

In the file, `name` holds q and `name/scale` holds s [rows, 1]; no weight of a torch network has a slash in its name.
bf16 keeps 8 bits of each number: |w' − w| ≤ 2⁻⁸ |w|.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tsdfm.errors import UserError

LEAST = 4096  # numbers of a matrix that is worth packing
LEVELS = 127
SCALE = "/scale"
KINDS = ("int8", "bf16")


def pack(weights: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    """What the file holds for float weights by name; `kind` is int8 or bf16."""
    if kind not in KINDS:
        raise UserError(f"weights are packed as int8 or bf16, not {kind!r}")
    out: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if not bool(tensor.isfinite().all()):
            raise UserError(f"{name} holds numbers that are not finite: this model cannot be shipped")
        if not is_large(tensor):
            out[name] = tensor.float().contiguous()
        elif kind == "bf16":
            out[name] = tensor.to(torch.bfloat16).contiguous()
        else:
            out[name], out[name + SCALE] = to_int8(tensor)
    return out


def unpack(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The float32 weights by name."""
    out = {}
    for name, tensor in stored.items():
        if name.endswith(SCALE):
            continue
        if tensor.dtype == torch.int8:
            if name + SCALE not in stored:
                raise UserError(f"{name} is stored as int8 without its scale: the file is not one that `ship` wrote")
            out[name] = tensor.float() * stored[name + SCALE]
        else:
            out[name] = tensor.float()
    return out


def to_int8(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """(q, s): whole numbers [..., n] and the scale of each row [..., 1]. Zeros have the least scale there is."""
    wide = matrix.float()
    scale = (wide.abs().amax(-1, keepdim=True) / LEVELS).clamp_min(torch.finfo(torch.float32).tiny)
    whole = (wide / scale).round().clamp(-LEVELS, LEVELS)
    return whole.to(torch.int8).contiguous(), scale.contiguous()


def is_large(tensor: Tensor) -> bool:
    """Is it a matrix that is worth packing?"""
    return tensor.ndim >= 2 and tensor.numel() >= LEAST
