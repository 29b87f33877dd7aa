"""Triton's interpreter without the two fifths of its time in which it prepares what is prepared already.

A launch swaps the functions of `triton.language` for interpreted ones. Every call of a device function inside the
kernel does so again, name by name, and finds nothing left to swap: such a call goes on at once here.
"""

from __future__ import annotations

import functools
from typing import Any

import triton.language as tl
from triton.language.core import is_builtin
from triton.runtime import interpreter

__all__ = ["quicken"]


@functools.cache
def quicken() -> None:
    """Do it, for this process."""
    swap = interpreter._patch_lang

    def swap_once(fn: Any) -> Any:
        inside = not is_builtin(tl.tensor.__add__)  # only while a kernel runs: the launch puts it back
        seen = [value for value in fn.__globals__.values() if value is tl or value is tl.core]
        if inside and not any(is_builtin(language.load) for language in seen):
            return None  # a device function keeps nothing to put back
        return swap(fn)

    interpreter._patch_lang = swap_once
