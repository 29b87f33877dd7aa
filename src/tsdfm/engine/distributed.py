"""Several processes, one model: torchrun starts them, this file joins them up (DDP or FSDP2).

    with join("auto") as world:            # alone, or as one of torchrun's processes
        loader = Loader(rows, batch, seed, rank=world.rank, world=world.size)

Everything here also works with one process and no process group, where it does nothing.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import json
import os
import re
import socket
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from tsdfm import terminal
from tsdfm.engine.launch import torchrun_says
from tsdfm.engine.sharded import sharded_module
from tsdfm.errors import UserError
from tsdfm.machine import keeping_memory

T = TypeVar("T")
PATIENCE = 10.0  # seconds after which a process says that it waits for others
GPUS = Path("/dev")  # where a driver puts nvidia0, nvidia1, …


@dataclass(frozen=True)
class Processes:
    """This process among its peers. `control` is a CPU group for small agreements, which then never wait for a GPU."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    control: dist.ProcessGroup | None = field(default=None, repr=False, compare=False)

    @property
    def main(self) -> bool:
        """Does this process write files and talk to the user?"""
        return self.rank == 0

    def mean(self, values: Mapping[str, float]) -> dict[str, float]:
        """Each value averaged over the processes, which must all give the same names."""
        if self.size == 1 or not values:
            return dict(values)
        names = sorted(values)
        packed = torch.tensor([values[name] for name in names], dtype=torch.float64)
        dist.all_reduce(packed, group=self.control)
        means = dict(zip(names, (packed / self.size).tolist(), strict=True))
        return {name: means[name] for name in values}

    def same(self, value: Any) -> Any:
        """Process 0's value (anything JSON can hold), on every process."""
        if self.size == 1:
            return value
        text = json.dumps(value).encode() if self.main else b""
        length = torch.tensor([len(text)], dtype=torch.int64)
        dist.broadcast(length, src=0, group=self.control)
        packed = torch.frombuffer(bytearray(text), dtype=torch.uint8) if self.main else _bytes(int(length.item()))
        dist.broadcast(packed, src=0, group=self.control)
        return json.loads(bytes(packed.tolist()))

    def on_main(self, action: Callable[[], T]) -> T | None:
        """Run `action` on process 0 while the others wait; if it fails there, all of them stop instead of hanging."""
        return self.together(lambda: action() if self.main else None, "process 0")

    def together(self, action: Callable[[], T], who: str = "another process") -> T:
        """Run `action` on every process and wait for all; if it fails on one, they all stop: `who` says where it did.

        Process 0 speaks for all at the end, so that another one says here what happened to it.
        """
        problem: BaseException | None = None
        try:
            result = action()
        except BaseException as caught:
            problem = caught
            if not self.main:
                terminal.say(f"process {self.rank}: {caught}")
        failed = self.mean({"failed": float(problem is not None)})["failed"]
        if problem is not None:
            raise problem
        if failed:
            raise UserError(f"{who} stopped with an error: see its message")
        return result


def _bytes(length: int) -> Tensor:
    return torch.empty(length, dtype=torch.uint8)


def pick_device(name: str, local_rank: int = 0) -> torch.device:
    """`auto` is this process's GPU if there is one, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
        if name == "cpu" and gpu_does_not_start():
            raise UserError("there is a GPU, but CUDA does not start on it: see `tsdfm doctor`, or ask for device cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"unknown device {name!r}: use auto, cpu, cuda or cuda:N") from None
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise UserError(f"device {name!r} is not supported for training: use auto, cpu, cuda or cuda:N")
    if not torch.cuda.is_available():
        raise UserError("device cuda was asked for, but torch sees no CUDA device: use --device cpu, or run `doctor`")
    index = device.index if device.index is not None else local_rank
    if index >= torch.cuda.device_count():
        raise UserError(f"GPU {index} was asked for, but there are {torch.cuda.device_count()}: start fewer processes")
    return torch.device("cuda", index)


def gpu_does_not_start() -> bool:
    """Is there a GPU that torch was built for, and not told to leave alone, and cannot use? The CPU would be a trap."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    hidden = (
        re.match(r"\s*(\d|GPU-|MIG-)", shown) is None
    )  # CUDA takes what comes before the first word it does not know
    ours = any(os.access(place, os.R_OK | os.W_OK) for place in GPUS.glob("nvidia[0-9]*"))
    return torch.version.cuda is not None and not hidden and ours and not torch.cuda.is_available()


@contextlib.contextmanager
def join(device: str = "auto") -> Iterator[Processes]:
    """Join the processes torchrun started (its environment variables say so), and part from them in the end."""
    rank, size, local_rank = torchrun_says()
    place = pick_device(device, local_rank)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    with contextlib.ExitStack() as stack:
        if place.type == "cpu":
            stack.enter_context(keeping_memory())
        if size == 1:
            yield Processes(device=place)
            return
        if not dist.is_initialized():
            _connect("nccl" if place.type == "cuda" else "gloo", rank, size)
            stack.callback(dist.destroy_process_group)
        control = dist.new_group(backend="gloo")
        yield Processes(dist.get_rank(), dist.get_world_size(), local_rank, place, control)


@functools.cache
def _meeting_place() -> tuple[Any, Iterator[int]]:
    """The key-value store torchrun's processes meet at, and a count of their meetings."""
    store, _, _ = next(rendezvous("env://"))
    return store, itertools.count()


def _connect(backend: str, rank: int, size: int) -> None:
    """Start the process group. Each meeting has its own keys: one that found the last one's (a pipeline trains several
    models in turn) would try to reach sockets that are closed, and hang."""
    host, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    where = f"{host}:{port}"
    try:
        socket.getaddrinfo(host, None)
    except socket.gaierror as problem:  # torch would ask again for half an hour
        if problem.errno == socket.EAI_NONAME:
            raise UserError(f"the environment says MASTER_ADDR={host!r}, a machine of no known address") from None
    waiting = threading.Timer(PATIENCE, terminal.say, [f"process {rank} of {size} waits for the others at {where}"])
    waiting.daemon = True
    waiting.start()
    try:
        store, meetings = _meeting_place()
        own = dist.PrefixStore(f"tsdfm-{next(meetings)}", store)  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=own, rank=rank, world_size=size)
    except (RuntimeError, ValueError) as problem:
        first = next(iter(str(problem).splitlines()), type(problem).__name__)
        raise UserError(
            f"process {rank} of {size} did not meet the others at {where} ({first}): use torchrun"
        ) from None
    finally:
        waiting.cancel()


def broadcast_weights(model: nn.Module, world: Processes) -> None:
    """Start every process from process 0's weights, whatever each one drew."""
    if world.size > 1:
        with torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()):
                dist.broadcast(tensor.data, src=0)


def average_gradients(model: nn.Module, world: Processes) -> None:
    """The mean over processes, each of which has rows of its own, for a network that no DDP is around."""
    if world.size == 1:
        return
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= world.size


def wrap(model: nn.Module, world: Processes, parallel: str, *, bf16: bool) -> nn.Module:
    """The module to call in training: `model` itself alone, DDP around it, or `model` sharded in place (FSDP2)."""
    if world.size == 1:
        return model
    if parallel == "fsdp":
        return shard(model, world, bf16=bf16)
    ids = [world.device.index] if world.device.type == "cuda" else None
    known = inspect.signature(DistributedDataParallel).parameters  # torch 2.13 renamed the switch for buffers
    still: Any = {("forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"): False}
    return DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True, **still)


def shard(model: nn.Module, world: Processes, *, bf16: bool, hold_root: bool | None = None) -> nn.Module:
    """Shard parameters, gradients and optimiser state over all processes, one group for each of `model.blocks`.

    Only the blocks travel as bf16. What is left in the root (embeddings, the conditioning of t and h, the head) stays
    float32, and inputs are not cast, so that the residual stream and small step sizes keep their precision: the same
    arithmetic as DDP under autocast. `hold_root=False` frees the root after a forward even without a backward.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # see engine/sharded.py

    # A network that ends in a linear layer returns a view, and torch warns of that at every run. No loss here changes
    # the network's output in place, which is what the warning is about.
    warnings.filterwarnings("ignore", message=".*returned a view tensor.*", category=UserWarning)
    mesh = init_device_mesh(world.device.type, (world.size,))
    travel = torch.bfloat16 if bf16 and world.device.type == "cuda" else None
    policy = MixedPrecisionPolicy(param_dtype=travel, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for block in getattr(model, "blocks", ()):
        fully_shard(block, mesh=mesh, mp_policy=policy)
    root = MixedPrecisionPolicy(cast_forward_inputs=False)
    fully_shard(model, mesh=mesh, mp_policy=root, reshard_after_forward=None if hold_root is None else not hold_root)
    return model


@contextlib.contextmanager
def gradients(model: nn.Module, *, last: bool) -> Iterator[None]:
    """Around the forward and backward of a micro-batch: gradients are shared out with the `last` one only."""
    if sharded_module(model):
        model.set_requires_gradient_sync(last)
    if isinstance(model, DistributedDataParallel) and not last:
        with model.no_sync():
            yield
    else:
        yield


def release(model: nn.Module) -> None:
    """Free what FSDP gathered for a forward that no backward follows (an evaluation)."""
    for module in model.modules():
        if sharded_module(module):
            module.reshard()


class Agreement:
    """A yes or no that every process must act on in the same step, such as "a signal asked us to stop".

    Each step starts the sum over processes and reads the one started a step before, so that nobody waits.
    """

    def __init__(self, world: Processes) -> None:
        self.world = world
        self._pending: tuple[dist.Work, Tensor] | None = None

    def any(self, mine: bool) -> bool:
        """Did any process say yes? Alone: at once. Among several: as of the call before."""
        if self.world.size == 1:
            return mine
        before = self._read()
        flag = torch.tensor([int(mine)], dtype=torch.int32)
        work = dist.all_reduce(flag, group=self.world.control, async_op=True)
        self._pending = (work, flag) if work is not None else None
        return before

    def _read(self) -> bool:
        if self._pending is None:
            return False
        work, flag = self._pending
        work.wait()
        self._pending = None
        return bool(flag.item())

    def close(self) -> None:
        """Take the last answer in, so that no message is left under way."""
        self._read()
