"""Triton kernels, each beside a plain torch reference of the same signature.

    draw     tokens, probabilities and statistics of logits rows, from one read of each
    rows     KL, cross-entropy, generalised KL and score entropy of logits rows, with the gradient in the logits' place
    reversal the time reversal of uniform noise, in the same way
    head     the output head padded to aligned columns: what makes its matrix products quick
    fused    losses of head(hidden) chunk by chunk: no [B, L, V] tensor ever exists
    noise    the uniforms of `flow.RowNoise` in one launch, without waiting for the device

    token_logs   log-probabilities of some tokens of head(hidden), chunk by chunk too: plain torch

The kernels run where the tensors are on a CUDA device and Triton is installed; everywhere else, and for float64, the
reference does. Nothing here imports Triton before a kernel is wanted.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from collections.abc import Iterator

import torch
from torch import Tensor

NAMES = ("draw", "rows", "head", "noise")
_off: set[str] = set()
_forced: set[str] = set()


@functools.cache
def has_triton() -> bool:
    """Is Triton installed?"""
    return importlib.util.find_spec("triton") is not None


def on(x: Tensor, name: str) -> bool:
    """Does kernel `name` work on a tensor like x, rather than its reference?"""
    if name in _off or x.dtype == torch.float64:
        return False
    return name in _forced or (x.is_cuda and has_triton())


@contextlib.contextmanager
def without(*names: str) -> Iterator[None]:
    """Use the references of these kernels (all, if none is named) inside the block: for comparisons."""
    before = set(_off)
    _off.update(names or NAMES)
    try:
        yield
    finally:
        _off.clear()
        _off.update(before)


@contextlib.contextmanager
def forced(*names: str) -> Iterator[None]:
    """Use these kernels on any device: for Triton's interpreter (`TRITON_INTERPRET=1`), which runs them on the CPU."""
    before = set(_forced)
    _forced.update(names or NAMES)
    try:
        yield
    finally:
        _forced.clear()
        _forced.update(before)


def switch_off(name: str) -> None:
    """Use the reference of a kernel from now on: what a benchmark does with one that does not compile."""
    _off.add(name)
