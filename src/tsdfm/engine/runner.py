"""Networks run faster than they are written, by wrapping: the network itself is never changed.

A network is a module with a body and an end, and its forward is the one after the other:

    hidden(*inputs) → Tensor           the body, where the time goes: embeddings and blocks
    read(hidden, **how) → Any          the end: its `head`, or what a caller does with hidden state and head

`Runner(net, body)` is the same network with another function for its body, and offers all that the network does. Bodies
are made of each other: `Replayed(Compiled(net.hidden), net, pool)` is compiled, then recorded (`engine.graphs`). Only
the body is compiled or recorded, since what is done with the head differs from call to call. A network without
`hidden`, such as an energy, is all body.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor, nn

from tsdfm.engine.graphs import GraphMemory, Replayed, plain

Body = Callable[..., Tensor]
"""(*tensors or None) → tensor."""
Net = TypeVar("Net", bound=nn.Module)


class Runner(nn.Module):
    """`net` with `body` in place of its own. Weights, their names and everything else are the network's."""

    net: nn.Module
    body: Body

    def __init__(self, net: nn.Module, body: Body) -> None:
        super().__init__()
        self.net, self.body = net, body
        self.training = net.training

    def forward(self, *inputs: Tensor | None, **how: Any) -> Any:
        """What the network's own forward gives for the same inputs."""
        out = self.body(*inputs)
        return cast(Any, self.net).read(out, **how) if has_end(self.net) else out

    def hidden(self, *inputs: Tensor | None) -> Tensor:
        """The final hidden state, by the body."""
        return self.body(*inputs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The network's own, under its own names."""
        return self.net.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Into the network."""
        return self.net.load_state_dict(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("net"), name)


def has_end(net: nn.Module) -> bool:
    """Is there a head after the network's body?"""
    return callable(getattr(net, "hidden", None))


def body_of(net: nn.Module) -> Body:
    """The part of a network that is worth compiling and recording."""
    body: Body = cast(Any, net).hidden if has_end(net) else net.forward
    return body


def wrapped(net: Net, body: Body) -> Net:
    """`net` with another body, for everyone who uses such a network."""
    return cast(Net, Runner(net, body))


def quickened(net: Net, pool: GraphMemory | None) -> Net:
    """A frozen network that is called with batches of any size, compiled and, with a pool, recorded."""
    if isinstance(net, Runner):
        return net
    body: Body = Compiled(body_of(net), "any")
    return wrapped(net, body if pool is None else Replayed(body, net, pool))


def is_recorded(net: nn.Module) -> bool:
    """Are passes without gradients recorded, one for each shape?"""
    return isinstance(net, Runner) and isinstance(net.body, Replayed)


@dataclass
class Compiled:
    """`fn(*tensors) → tensor` by torch.compile; by itself where that fails, which is said once.

    each    code for every size of its own. Without the word, torch.compile sees two batch sizes (the student's and the
            semi-teacher's, say) and makes slower code for any size, which both then run
    any     one code for batches of every size: the first dimension is left open
    auto    as torch.compile finds best
    """

    fn: Body
    sizes: Literal["each", "any", "auto"] = "each"
    inner: Body | None = field(init=False)

    def __post_init__(self) -> None:
        self.inner = torch.compile(self.fn)

    def __call__(self, *inputs: Tensor | None) -> Tensor:
        if self.inner is None:
            return self.fn(*inputs)
        for x in inputs:
            if x is not None:
                self.mark(x)
        try:
            return self.inner(*inputs)
        except torch._dynamo.exc.TorchDynamoException as problem:
            if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
                raise  # the recording failed, not the compiler
            reason = (str(problem).splitlines() or [""])[0]
            warnings.warn(f"torch.compile failed, the network runs without: {reason}", stacklevel=2)
            self.inner = None
            return self.fn(*inputs)

    def mark(self, x: Tensor) -> None:
        """Tell the compiler about the sizes of an input."""
        if self.sizes == "each":
            torch._dynamo.mark_static(x)
        elif self.sizes == "any":
            torch._dynamo.maybe_mark_dynamic(x, 0)


@contextlib.contextmanager
def as_written() -> Iterator[None]:
    """Networks run as they are written inside the block, neither compiled nor recorded: for shapes that come once."""
    loaded = "torch._dynamo" in sys.modules  # else nothing is compiled, and loading the compiler takes seconds
    with torch.compiler.set_stance("force_eager") if loaded else contextlib.nullcontext(), plain():
        yield


def compile_blocks(net: nn.Module) -> None:
    """torch.compile block by block, by torch's own switch of a module: FSDP works between the blocks."""
    for module in list(getattr(net, "blocks", ())) or [net]:
        module.compile()
