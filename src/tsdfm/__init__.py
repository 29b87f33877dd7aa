"""Trajectory-Shaped Discrete Flow Matching: language models that write a whole text in a few network passes.

    import tsdfm
    model = tsdfm.load("runs/demo/teacher-uniform")
    print(model.sample(n=4, steps=32, seed=0).texts)

Nothing heavy is imported until it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tsdfm.lazy import BROUGHT

__version__ = "0.1.0"
__all__ = ["UserError", "__version__", "from_pretrained", "load"]

if TYPE_CHECKING:
    from tsdfm.errors import UserError
    from tsdfm.samples.hub import from_pretrained
    from tsdfm.samples.model import load


def _jumps() -> Mapping[str, Any]:
    """The jumps that methods bring, for `flow.jump_from`."""
    from tsdfm.methods import brought_jumps

    return brought_jumps()


BROUGHT["jumps"] = _jumps


def __getattr__(name: str) -> Any:
    if name == "load":
        from tsdfm.samples.model import load

        return load
    if name == "from_pretrained":
        from tsdfm.samples.hub import from_pretrained

        return from_pretrained
    if name == "UserError":
        from tsdfm.errors import UserError

        return UserError
    raise AttributeError(f"module 'tsdfm' has no attribute {name!r}")
