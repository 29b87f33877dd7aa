"""Triton's interpreter without the half of its time in which it prepares what is prepared already.

A launch swaps the functions of `triton.language` for interpreted ones. Every call of a device function inside the
kernel does so again, name by name, and finds nothing left to swap: such a call goes on at once here. Every operation
makes the types of its blocks anew, and the table that tells NumPy's types: here they are kept.
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
    keep_types()


def keep_types() -> None:
    """Types are values that nothing changes; pointers, whose types have no hash, are left as they are."""
    look_up, known, made = interpreter._get_np_dtype, functools.cache(interpreter._get_np_dtype), tl.block_type
    block = functools.cache(lambda dtype, shape: made(dtype, list(shape)))

    def np_dtype(dtype: Any) -> Any:
        return look_up(dtype) if isinstance(dtype.scalar, tl.pointer_type) else known(dtype.scalar)

    def block_type(dtype: Any, shape: Any) -> Any:
        return made(dtype, shape) if isinstance(dtype, tl.pointer_type) else block(dtype, tuple(shape))

    interpreter._get_np_dtype = np_dtype
    interpreter.InterpreterBuilder.get_block_ty = lambda _, dtype, shape: block_type(dtype, shape)
    made.with_element_ty = lambda self, dtype: block_type(dtype, self.shape)
