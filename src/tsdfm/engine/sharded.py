"""Is it sharded over processes (FSDP2)?

Most commands never shard, and torch's FSDP takes a second to load. It is not loaded for the question: where nobody has
loaded it, nothing is sharded.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

__all__ = ["sharded_module", "sharded_tensor"]


def sharded_module(model: object) -> TypeGuard[FSDPModule]:
    """Does each process hold a part of this module's weights?"""
    return _is(model, "torch.distributed.fsdp", "FSDPModule")


def sharded_tensor(tensor: object) -> TypeGuard[DTensor]:
    """Does each process hold a part of this tensor?"""
    return _is(tensor, "torch.distributed.tensor", "DTensor")


def _is(value: object, home: str, name: str) -> bool:
    kind: Any = getattr(sys.modules.get(home), name, None)
    return kind is not None and isinstance(value, kind)
