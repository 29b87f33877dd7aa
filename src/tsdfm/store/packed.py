"""Weights made small for shipping: coded, int8 or bf16 in a safetensors file, float32 again when they are read.

Only large matrices are packed: at least two dimensions and 4 096 numbers. Vectors (norms, biases) and small matrices
stay float32; they weigh nothing and steer much. A row w is an output of a linear layer or a token of an embedding
(more than two dimensions: each line along the last).

**int8** is symmetric, with one float32 scale for each row:

    s = max |w| / 127,    q = round(w / s) ∈ {−127, …, 127},    w' = q·s,    |w' − w| ≤ s / 2

In the file, `name` holds q and `name/scale` holds s [rows, 1]; no weight of a torch network has a slash in its name.

**coded** has steps that may be coarser, c times the row's root mean square, and Huffman's code for the whole numbers,
which are mostly small. A student begins as its teacher, and a compass may: what they have in common is stored once.

    s = max(c·rms(w), max |w| / 127),    q = round((w − b) / s),    w' = b + q·s,    |w' − w| ≤ s / 2

b is the teacher's w' of that name where this is shorter, else 0. `name` holds the deflate stream (RFC 1951) of q as
bytes, and s is bf16 [rows, 1] in `name/delta` where b is the teacher's, in `name/scale` where b = 0.

**bf16** keeps 8 bits of each number: |w' − w| ≤ 2⁻⁸ |w|.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import torch
from torch import Tensor

from tsdfm.errors import UserError

LEAST = 4096  # numbers of a matrix that is worth packing
LEVELS = 127
SCALE, DELTA = "/scale", "/delta"
KINDS = ("coded", "int8", "bf16")
OTHER = "the file is not one that `ship` wrote"


def pack(
    weights: Mapping[str, Tensor], kind: str, *, coarse: float = 0.0, base: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """What the file holds for float weights by name.

    Args:
        weights: float tensors by name.
        kind: coded, int8 or bf16.
        coarse: c of coded weights; with 0 their steps are those of int8.
        base: the weights of the teacher as they are when unpacked, from which coded ones may be stored as differences.
    """
    if kind not in KINDS:
        raise UserError(f"weights are packed as {', '.join(KINDS[:-1])} or {KINDS[-1]}, not {kind!r}")
    out: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if not bool(tensor.isfinite().all()):
            raise UserError(f"{name} holds numbers that are not finite: this model cannot be shipped")
        if not is_large(tensor):
            out[name] = tensor.float().contiguous()
        elif kind == "bf16":
            out[name] = tensor.to(torch.bfloat16).contiguous()
        elif kind == "int8":
            out[name], out[name + SCALE] = to_int8(tensor)
        else:
            out |= to_code(name, tensor.float(), coarse, (base or {}).get(name))
    return out


def unpack(stored: Mapping[str, Tensor], base: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """The float32 weights by name; `base` are those of the teacher, for what is stored as a difference from it."""
    out = {}
    for name, tensor in stored.items():
        if name.endswith((SCALE, DELTA)):
            continue
        if tensor.dtype == torch.int8:
            scale = stored.get(name + SCALE)
            if scale is None or scale.dtype != torch.float32 or scale.shape != (*tensor.shape[:-1], 1):
                raise UserError(f"{name} is stored as int8 without its scale: {OTHER}")
            out[name] = tensor.float() * scale
        elif tensor.dtype == torch.uint8:
            out[name] = from_code(name, stored, base or {})
        elif tensor.dtype in (torch.float32, torch.bfloat16):
            out[name] = tensor.float()
        else:
            raise UserError(f"{name} is stored as {tensor.dtype}: {OTHER}")
    return out


def has_differences(stored: Mapping[str, Tensor]) -> bool:
    """Are some of the weights stored as differences from the teacher's?"""
    return any(name.endswith(DELTA) for name in stored)


def to_int8(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """(q, s): whole numbers [..., n] and the scale of each row [..., 1]. Zeros have the least scale there is."""
    wide = matrix.float()
    scale = (wide.abs().amax(-1, keepdim=True) / LEVELS).clamp_min(torch.finfo(torch.float32).tiny)
    whole = (wide / scale).round().clamp(-LEVELS, LEVELS)
    return whole.to(torch.int8).contiguous(), scale.contiguous()


def to_code(name: str, matrix: Tensor, coarse: float, base: Tensor | None) -> dict[str, Tensor]:
    """The stream and the scale of each row [..., 1], as a difference from `base` [..., n] if that is shorter."""
    least = torch.finfo(torch.float32).tiny
    scale = torch.maximum(
        coarse * matrix.square().mean(-1, keepdim=True).sqrt(), matrix.abs().amax(-1, keepdim=True) / LEVELS
    ).clamp_min(least)
    scale = (scale * (1 + 2**-8)).bfloat16()  # rounded up, so that no number is beyond the last level
    best = {name: deflate(matrix / scale.float()), name + SCALE: scale}
    if base is not None and base.shape == matrix.shape:
        whole = (matrix - base) / scale.float()
        if float(whole.abs().max()) <= LEVELS:
            other = deflate(whole)
            if len(other) < len(best[name]):
                best = {name: other, name + DELTA: scale}
    return best


def from_code(name: str, stored: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> Tensor:
    """The matrix that `to_code` stored. What it makes is bounded by the size of the stream before it is made."""
    scales = [stored[name + mark] for mark in (SCALE, DELTA) if name + mark in stored]
    if len(scales) != 1 or scales[0].dtype != torch.bfloat16 or scales[0].ndim < 2 or scales[0].shape[-1] != 1:
        raise UserError(f"{name} is stored in code without its scale: {OTHER}")
    (scale,) = scales
    numbers = inflate(name, stored[name])
    if not scale.numel() or not numbers.numel() or numbers.numel() % scale.numel():
        raise UserError(f"{name} has {numbers.numel()} numbers for {scale.numel()} rows: {OTHER}")
    out = numbers.view(*scale.shape[:-1], -1).float().mul_(scale.float())
    if name + SCALE in stored:
        return out
    if name not in base or base[name].shape != out.shape:
        raise UserError(f"{name} is a difference from a teacher's that is not there: {OTHER}")
    return out.add_(base[name])


def deflate(numbers: Tensor) -> Tensor:
    """Whole numbers in −127…127 as bytes in Huffman's code; matches are not looked for, weights do not repeat."""
    data = numbers.round().clamp(-LEVELS, LEVELS).to(torch.int8).numpy().tobytes()
    coder = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS, 9, zlib.Z_HUFFMAN_ONLY)
    return torch.frombuffer(bytearray(coder.compress(data) + coder.flush()), dtype=torch.uint8)


def inflate(name: str, stream: Tensor) -> Tensor:
    """The whole numbers of a stream, int8, which are no more than its bits: each takes one at least."""
    data = stream.flatten().numpy().tobytes()
    coder = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        found = coder.decompress(data, 8 * len(data) + 1)
    except zlib.error as problem:
        raise UserError(f"{name} cannot be decoded ({problem}): {OTHER}") from None
    if not coder.eof or coder.unused_data:
        raise UserError(f"{name} cannot be decoded (it does not end where its stream does): {OTHER}")
    return torch.frombuffer(bytearray(found), dtype=torch.int8)


def is_large(tensor: Tensor) -> bool:
    """Is it a matrix that is worth packing?"""
    return tensor.ndim >= 2 and tensor.numel() >= LEAST
