"""CUDA graphs: a network's pass is recorded once for each shape and then replayed by one call of the host.

A transformer of 12 blocks launches some 150 kernels a pass. Launched one by one from Python they take the host longer
than the device, which then waits. A replay runs the very kernels that were recorded, so results are the same bits.

    Replayed   a pass without gradients: semi-teacher, compass, a frozen teacher
    Trained    a pass with gradients: forward and backward are recorded, autograd sees one function
    Routines   functions with several results that differ by what the host has decided, without gradients

All run the function itself wherever a replay would not be safe, and for good if recording should fail: they never
change a result, only the time it takes. Graphs of one `GraphMemory` share memory: none of them runs between a `Trained`
forward and its backward.
"""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

WARM = 1  # plain calls of a shape before it is recorded: they compile, and let libraries choose their kernels
MOST = 64  # shapes that one function is recorded for
_plain = 0


@contextlib.contextmanager
def plain() -> Iterator[None]:
    """Replay nothing inside the block: for comparisons."""
    global _plain
    _plain += 1
    try:
        yield
    finally:
        _plain -= 1


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """No garbage collection inside the block: it may free another recording's memory, which spoils one being made."""
    gc.collect()
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def renew_generator() -> None:
    """Let the device's random numbers be drawn again after a recording broke off: its generator still waits for it.

    Its copy does not, and has its seed and place. Recordings that were made before draw from the old one, so they are
    made anew (`GraphMemory.failures`).
    """
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        own = torch.cuda.default_generators[torch.cuda.current_device()]
        own.graphsafe_set_state(own.clone_state())


@dataclass
class GraphMemory:
    """Memory that graphs share, made when the first of them is recorded."""

    handle: Any = None
    failures: int = 0  # recordings that broke off
    busy: bool = False  # a trained forward waits for its backward: what it keeps lies in this memory

    def get(self) -> Any:
        """The handle that `torch.cuda.graph` takes."""
        if self.handle is None:
            self.handle = torch.cuda.graph_pool_handle()
        return self.handle

    def renew(self) -> None:
        """After a failure: what was begun in the old pool is left alone."""
        self.handle = None
        self.failures += 1


@dataclass
class Recording:
    """A graph with the tensors it reads and writes; they live as long as it does, or it would use freed memory."""

    graph: Any
    inputs: list[Tensor]
    output: Any
    keep: Any = None

    def run(self, inputs: Sequence[Tensor]) -> Tensor:
        """Replay; the answer is overwritten by the next replay."""
        for mine, theirs in zip(self.inputs, inputs, strict=True):
            mine.copy_(theirs)
        self.graph.replay()
        out: Tensor = self.output
        return out


@dataclass
class _Base:
    """What both kinds share: which call may be replayed, and when to record."""

    fn: Callable[..., Tensor]
    module: nn.Module
    pool: GraphMemory = field(default_factory=GraphMemory)
    most: int = MOST
    made: dict[Any, Any] = field(default_factory=dict)
    seen: dict[Any, int] = field(default_factory=dict)
    off: bool = False

    def safe(self, inputs: Sequence[Tensor | None]) -> bool:
        """May this very call be replayed?"""
        if self.off or _plain or self.pool.busy or torch.compiler.is_compiling():
            return False
        given = [x for x in inputs if x is not None]
        return all(x.is_cuda for x in given) and not torch.cuda.is_current_stream_capturing()

    def key(self, inputs: Sequence[Tensor | None]) -> Any:
        """Everything a recording depends on but the values."""
        first = next(self.module.parameters(), None)
        return (
            tuple(None if x is None else (tuple(x.shape), x.stride(), x.dtype) for x in inputs),
            torch.is_autocast_enabled("cuda"),
            torch.get_autocast_dtype("cuda"),
            self.module.training,
            0 if first is None else first.data_ptr(),
            self.pool.failures,
        )

    def find(self, inputs: Sequence[Tensor | None]) -> Any:
        """The recording for such inputs, made now if they were seen before; None: call the function itself."""
        if not self.safe(inputs):
            return None
        key = self.key(inputs)
        made = self.made.get(key)
        if made is None:
            seen = self.seen.get(key, 0)
            self.seen[key] = seen + 1
            if seen >= WARM and len(self.made) < self.most:
                made = self.attempt(key, inputs)
        return made

    def attempt(self, key: Any, inputs: Sequence[Tensor | None]) -> Any:
        """Record, or say why not and leave it at that."""
        try:
            with undisturbed():
                made = self.record(inputs)
        except Exception as problem:
            self.off = True
            self.pool.renew()
            renew_generator()
            reason = (str(problem).splitlines() or [""])[0]
            warnings.warn(
                f"no CUDA graph for {type(self.module).__name__}, it runs without: {type(problem).__name__}: {reason}",
                stacklevel=2,
            )
            return None
        self.made[key] = made
        return made

    def record(self, inputs: Sequence[Tensor | None]) -> Any:
        raise NotImplementedError

    def copies(self, inputs: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Inputs at addresses of their own, laid out as the originals are.

        With other strides a compiled function would be compiled again, which cannot be done while recording.
        """
        return [None if x is None else alike(x.detach()) for x in inputs]

    def capture(self, graph: Any) -> Any:
        # other threads (the loader's) may go on using the device meanwhile
        return torch.cuda.graph(graph, pool=self.pool.get(), capture_error_mode="thread_local")


def alike(x: Tensor) -> Tensor:
    """A copy with the same strides (`clone` packs a slice); of an expanded tensor, which has no room, a plain copy."""
    if any(step == 0 and size > 1 for step, size in zip(x.stride(), x.shape, strict=True)):
        return x.clone()
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)


class Replayed(_Base):
    """`fn(*tensors) → tensor` of a network whose weights are only ever changed in place; without gradients."""

    def __call__(self, *inputs: Tensor | None) -> Tensor:
        made = None if torch.is_grad_enabled() else self.find(inputs)
        if made is None:
            return self.fn(*inputs)
        out: Tensor = made.run([x for x in inputs if x is not None])
        return out.clone()

    def record(self, inputs: Sequence[Tensor | None]) -> Recording:
        """The function on copies of its inputs: once outside, for the compiler, and once into a graph."""
        static, graph = self.copies(inputs), torch.cuda.CUDAGraph()
        with torch.random.fork_rng([torch.cuda.current_device()]):
            self.fn(*static)  # what the compiler makes of copies, it makes now: while recording it could not
        with self.capture(graph):
            output = self.fn(*static)
        return Recording(graph, [x for x in static if x is not None], output)


@dataclass
class Routines(_Base):
    """`call(plan, fn, tensors) → tensors`, without gradients: one recording for every plan and shape.

    A plan is all that `fn` takes from the host: two calls with equal plans and shapes must do the same operations, and
    read the same memory but for the tensors given. Results lie in buffers outside of the graphs' memory, which
    recordings share: what a recording keeps for itself is the size of its inputs.
    """

    plan: Any = None
    rooms: dict[Any, Tensor] = field(default_factory=dict)
    shapes: dict[Any, list[Any]] = field(default_factory=dict)

    def call(self, plan: Any, fn: Callable[..., list[Tensor]], inputs: Sequence[Tensor]) -> list[Tensor]:
        """`fn(*inputs)`, or a replay of it; `plan` is hashable and says all that `fn` takes from the host."""
        self.plan, self.fn = plan, fn  # type: ignore[assignment]
        made = None if torch.is_grad_enabled() else self.find(inputs)
        if made is None:
            found = fn(*inputs)
            self.shapes[self.key(inputs)] = [(n, x.shape, x.dtype, x.device) for n, x in enumerate(found)]
            return found
        made.run(inputs)
        return [room.clone() for room in made.output]

    def key(self, inputs: Sequence[Tensor | None]) -> Any:
        """The plan besides shapes and modes."""
        return self.plan, super().key(inputs)

    def record(self, inputs: Sequence[Tensor | None]) -> Recording:
        """The function on copies of its inputs, its results copied to `rooms`."""
        static, graph, rooms = self.copies(inputs), torch.cuda.CUDAGraph(), self.rooms_of(inputs)
        with self.capture(graph):
            for room, value in zip(rooms, self.fn(*static), strict=True):
                room.copy_(value)
        return Recording(graph, [x for x in static if x is not None], rooms, keep=self.fn)

    def rooms_of(self, inputs: Sequence[Tensor | None]) -> list[Tensor]:
        """Where the results go, of the shapes that the plain call before had."""
        for about in self.shapes[self.key(inputs)]:
            if about not in self.rooms:
                _, shape, dtype, device = about
                self.rooms[about] = torch.empty(shape, dtype=dtype, device=device)
        return [self.rooms[about] for about in self.shapes[self.key(inputs)]]


@dataclass
class _Both:
    """Forward and backward of one shape."""

    forward: Recording
    backward: Any
    by_output: Tensor
    params: list[Tensor]
    grads: list[Tensor]
    pool: GraphMemory


@dataclass
class Trained(_Base):
    """`fn(*tensors) → tensor` of a network in training, whose gradients are taken once between two clearings.

    Gradients live at fixed addresses, which the next backward overwrites: so a call that finds gradients not cleared
    (micro-batches), or a forward whose backward has not come, is an ordinary one.
    """

    params: list[Tensor] = field(default_factory=list)

    def __call__(self, *inputs: Tensor | None) -> Tensor:
        made: _Both | None = self.find(inputs) if self.clear() else None
        if made is None:
            return self.fn(*inputs)
        given = [x for x in inputs if x is not None]
        out: Tensor = _Run.apply(made, len(given), *given, *made.params)  # type: ignore[no-untyped-call]
        return out

    def clear(self) -> bool:
        """Are gradients wanted, and those of the step before cleared?"""
        if not self.params:
            self.params = [p for p in self.module.parameters() if p.requires_grad]
        return torch.is_grad_enabled() and all(p.grad is None for p in self.params)

    def record(self, inputs: Sequence[Tensor | None]) -> _Both:
        """The forward into one graph, the gradients of all parameters it uses into another."""
        static, params = self.copies(inputs), self.params
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with self.capture(forward):
            output = self.fn(*static)
        by_output = torch.zeros_like(output)
        with self.capture(backward):
            grads = torch.autograd.grad((output,), params, (by_output,), allow_unused=True)
        used = [(p, g) for p, g in zip(params, grads, strict=True) if g is not None]
        recorded = Recording(forward, [x for x in static if x is not None], output.detach())
        theirs, found = [p for p, _ in used], [g.detach() for _, g in used]
        return _Both(recorded, backward, by_output, theirs, found, self.pool)


class _Run(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, made: _Both, count: int, *tensors: Tensor) -> Tensor:
        ctx.made, ctx.count = made, count
        made.pool.busy = True
        return made.forward.run(tensors[:count]).detach()

    @staticmethod
    def backward(ctx: Any, *by_output: Tensor) -> Any:
        made: _Both = ctx.made
        made.by_output.copy_(by_output[0])
        made.backward.replay()
        made.pool.busy = False
        # a new tensor for each: autograd then takes it for the parameter's gradient instead of a copy
        return (None, None, *([None] * ctx.count), *(g.detach() for g in made.grads))


def captured(step: Callable[[], Any]) -> Callable[[], None]:
    """A step without inputs and outputs as a graph: what it works on must be reachable from `step`, which is kept."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        step()
    return keeping(graph.replay, step)


def keeping(replay: Callable[[], Any], step: Callable[[], Any]) -> Callable[[], None]:
    """`replay`, with everything `step` refers to kept alive: a graph holds addresses, not tensors."""

    def turn() -> None:
        assert step is not None
        replay()

    return turn
