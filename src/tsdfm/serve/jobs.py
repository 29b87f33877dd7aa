"""Requests and what becomes of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from tsdfm.errors import UserError
from tsdfm.samples.given import Asked, Given
from tsdfm.samples.lengths import kept
from tsdfm.serve.row import Row


class Refused(UserError):
    """A request that cannot be written, with the field that is to blame."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@contextlib.contextmanager
def blaming(field: str) -> Iterator[None]:
    """What the block refuses is refused for this field."""
    try:
        yield
    except UserError as problem:
        raise Refused(field, str(problem)) from None


class Busy(Exception):
    """The queue is full: come back in `seconds`."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"the queue is full: try again in {seconds} s")
        self.seconds = seconds


class Closing(Exception):
    """The server takes nothing new."""


class Broken(RuntimeError):
    """A device cannot go on, and nobody waits for what will not come."""


class Late(Exception):
    """The request was not done in time."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A request: `n` texts for each prefix or infill template, as `TextModel.sample` takes them."""

    model: str
    prefixes: tuple[str, ...] = ()
    infills: tuple[str, ...] = ()
    n: int = 1
    seed: int = 0
    steps: int | None = None
    temperature: float | None = None
    top_p: float = 1.0
    jump: str = "auto"
    guide: str = "blind"


@dataclass(frozen=True)
class Text:
    """A finished text: its tokens with the anchor, the passes made for it, and which of its job's rows it is."""

    tokens: list[int]
    passes: int
    row: int


@dataclass(frozen=True)
class Seen:
    """Text `index` after `passes` of `of` passes, at time `t`: the places whose tokens have changed since the last."""

    index: int
    passes: int
    of: int
    t: float
    changes: list[tuple[int, int]]

    def then(self, later: Seen) -> Seen:
        """This and a later look at the same text, as one."""
        return replace(later, changes=list({**dict(self.changes), **dict(later.changes)}.items()))


@dataclass(eq=False)
class Job:
    """A request on its way. `done` gets its texts, or why there are none; `on_pass` is told of every pass of a text."""

    ask: Ask
    asked: Asked
    steps: int
    dials: tuple[float, float]
    deadline: float
    on_pass: Callable[[Seen], None] | None = None
    done: Future[list[Text]] = field(default_factory=Future)
    finished: dict[int, tuple[list[int], int]] = field(default_factory=dict)
    scores: dict[int, float] = field(default_factory=dict)
    ended: bool = field(init=False, default=False)
    """Is `done`? Asked of every row in every pass, it takes no lock."""

    def __post_init__(self) -> None:
        self.done.add_done_callback(self.end)

    def end(self, _: Future[list[Text]]) -> None:
        """It is done."""
        self.ended = True

    @cached_property
    def numbers(self) -> list[int]:
        """The number of each row's text."""
        made: list[int] = self.asked.numbers.tolist()
        return made

    def cancel(self) -> None:
        """Nobody waits for it any more: its rows are free from the next pass on."""
        self.done.cancel()

    @cached_property
    def chosen(self) -> bool:
        """Are there several rows for a text, of which the likeliest is kept?"""
        return self.asked.texts < len(self.numbers)

    def fail(self, problem: Exception) -> None:
        """It ends without texts."""
        with contextlib.suppress(InvalidStateError):  # it has ended
            self.done.set_exception(problem)

    def finish(self, place: int, tokens: list[int], passes: int) -> None:
        """Row `place` is written; the last one ends the job."""
        self.finished[place] = tokens, passes
        numbers = self.numbers
        if len(self.finished) < len(numbers):
            return
        rows = range(len(numbers))
        best = kept(numbers, [self.scores.get(row, 0.0) for row in rows])
        made = {number: sum(self.finished[row][1] for row in rows if numbers[row] == number) for number in set(numbers)}
        self.give([Text(self.finished[row][0], made[numbers[row]], row) for row in best])

    def give(self, texts: list[Text]) -> None:
        """It ends with its texts."""
        with contextlib.suppress(InvalidStateError):  # it has ended
            self.done.set_result(texts)


@dataclass(eq=False)
class Place:
    """A row of a job: waiting until `row` is there."""

    job: Job
    index: int
    row: Row | None = None

    @property
    def number(self) -> int:
        """The text's own number."""
        return self.job.numbers[self.index]

    def given(self, device: torch.device) -> Given | None:
        """What is given of the row, [1, L]."""
        return self.job.asked.row(self.index, device)
