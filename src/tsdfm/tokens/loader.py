"""Batches by step number. The loader has no state, so resuming at the exact row takes nothing but the step."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tsdfm.errors import UserError
from tsdfm.tokens.rows import TokenRows
from tsdfm.tokens.shuffle import shuffled


@dataclass(frozen=True)
class Batch:
    """`tokens` [b, L] int64, and `rows` [b] int64: the rows' running numbers since step 0, which seed their noise.

    `given` [b, L], bool, is what is never noise nor learned in rows with a prompt; none: their anchors alone.
    """

    tokens: Tensor
    rows: Tensor
    given: Tensor | None = field(default=None, kw_only=True)

    def known(self, anchor: int) -> Tensor:
        """What is never noise, bool [b, L], or [L] where rows have the same `anchor` alone."""
        if self.given is not None:
            return self.given
        return torch.arange(self.tokens.shape[1], device=self.tokens.device) < anchor

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """The same rows on a device."""
        return self._each(lambda x: x.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """The same rows in page-locked memory, from where copies need not be waited for."""
        return self._each(Tensor.pin_memory)

    def on_host(self) -> tuple[Tensor, Tensor | None]:
        """The rows' numbers [b] and what is given [b, L] in the host's memory, where steps are planned."""
        return self.rows.cpu(), None if self.given is None else self.given.cpu()

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        given = None if self.given is None else change(self.given)
        return Batch(change(self.tokens), change(self.rows), given=given)


class Loader:
    """The rows of `rows` in a new random order every epoch, `batch` of them a step over all `world` processes.

    Running number n = step·batch + rank·(batch/world) + j is row π_e(n mod N) with e = ⌊n / N⌋, where π_e permutes the
    N rows. Steps do not line up with epochs: a batch may hold the end of one and the beginning of the next.
    """

    def __init__(self, rows: TokenRows, batch: int, seed: int, rank: int = 0, world: int = 1) -> None:
        if batch < 1 or batch % world:
            raise UserError(f"batch {batch} does not divide by {world} processes: give a multiple of {world}")
        if not 0 <= rank < world:
            raise ValueError(f"rank {rank} of {world}")
        self.rows, self.batch, self.seed = rows, batch, seed
        self.rank, self.world, self.share = rank, world, batch // world

    def numbers(self, step: int) -> NDArray[np.int64]:
        """The running numbers of this process's rows at `step`."""
        first = step * self.batch + self.rank * self.share
        return np.arange(first, first + self.share, dtype=np.int64)

    def indices(self, step: int) -> NDArray[np.int64]:
        """Which rows of the split those are."""
        return epoch_order(self.numbers(step), len(self.rows), self.seed)

    def at(self, step: int) -> Batch:
        """This process's part of the batch of `step`."""
        indices = self.indices(step)
        tokens = torch.from_numpy(self.rows.take(indices).astype(np.int64))
        given = torch.from_numpy(self.rows.given(indices)) if self.rows.prompted else None
        return Batch(tokens, torch.from_numpy(self.numbers(step)), given=given)

    def epoch(self, step: int) -> float:
        """How many times the rows have been gone through before `step`."""
        return step * self.batch / len(self.rows)


def epoch_order(numbers: NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    """Which of `count` rows the running numbers [n] are: every epoch has all of them, in an order of its own."""
    epochs, places = np.divmod(numbers, count)
    out = np.empty_like(places)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        out[here] = shuffled(places[here], count, seed, int(epoch))
    return out


def prefetch(
    loader: Loader, start: int, device: torch.device | str, stop: int | None = None, depth: int = 4
) -> Prefetch:
    """The batches of steps start, start + 1, … (before `stop`) on `device`, made ahead by a background thread.

    with prefetch(loader, start=0, device="cuda", stop=1000) as batches:
        for batch in batches:
            ...
    """
    return Prefetch(loader, start, torch.device(device), stop, depth)


Ready = queue.Queue[Batch | BaseException | None]


class Prefetch(Iterator[Batch]):
    """An iterator over batches whose thread ends when it is closed, dropped or run to its end.

    On CUDA the batches come from pinned memory and are copied without waiting. An error in the thread is raised here.
    """

    def __init__(self, loader: Loader, start: int, device: torch.device, stop: int | None, depth: int) -> None:
        if str(device) == "cuda":  # the thread has to know which one
            device = torch.device("cuda", torch.cuda.current_device())
        self.device = device
        self.ready: Ready = queue.Queue(depth)
        self.done = threading.Event()
        # The thread holds the queue and the event but not this object, so that dropping it ends the thread.
        work = (loader, start, stop, device, self.ready, self.done)
        self.worker = threading.Thread(target=_fill, args=work, daemon=True, name="loader")
        self.worker.start()

    def __next__(self) -> Batch:
        if self.done.is_set():
            raise StopIteration
        item = self.ready.get()
        if isinstance(item, Batch):
            return item.to(self.device, non_blocking=True)
        self.close()
        if item is None:
            raise StopIteration
        raise item

    def close(self) -> None:
        """End the thread; may be called more than once."""
        self.done.set()
        if self.worker is not threading.current_thread():
            self.worker.join()

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if done := self.__dict__.get("done"):
            done.set()


def _fill(
    loader: Loader, start: int, stop: int | None, device: torch.device, ready: Ready, done: threading.Event
) -> None:
    cuda = device.type == "cuda"
    try:
        if cuda:
            torch.cuda.set_device(device)  # a new thread starts on GPU 0, and pinning would open a context there
        for step in range(start, stop) if stop is not None else itertools.count(start):
            batch = loader.at(step)
            if not _put(ready, batch.pin_memory() if cuda else batch, done):
                return
        _put(ready, None, done)
    except BaseException as problem:
        _put(ready, problem, done)


def _put(ready: Ready, item: Batch | BaseException | None, done: threading.Event) -> bool:
    """Put, looking up now and then whether anybody is still there to take it."""
    while not done.is_set():
        try:
            ready.put(item, timeout=0.1)
            return True
        except queue.Full:
            continue
    return False


@dataclass(frozen=True)
class HostBatch(Batch):
    """A batch that also has its row numbers, and what is given, on the host, where its rows' steps are planned."""

    numbers: Tensor
    given_here: Tensor | None = field(default=None, kw_only=True)

    def on_host(self) -> tuple[Tensor, Tensor | None]:
        return self.numbers, self.given_here


def with_numbers(loader: Loader, step: int, device: torch.device, stop: int) -> Iterator[HostBatch]:
    """The loader's batches from `step` on, with their row numbers and what is given on the host as well."""
    with prefetch(loader, step, device, stop=stop) as batches:
        for batch in batches:
            numbers, here = torch.from_numpy(loader.numbers(step)), batch.given
            if here is not None and here.is_cuda:  # read once more: nobody then waits for the device
                here = torch.from_numpy(loader.rows.given(loader.indices(step)))
            yield HostBatch(batch.tokens, batch.rows, numbers, given=batch.given, given_here=here)
            step += 1
