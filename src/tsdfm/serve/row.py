"""Texts on their way, and one network pass for some of them.

A flow model's network takes a time per row, so rows at different steps can share a pass (`flow.walk.Walk`). What
holds of a text, whatever is written beside it:

- Its random numbers depend on its seed and number alone.
- A pass goes through the network in batches of fixed shapes, which are filled up. With one shape every product is made
  in that shape, whoever else is there: the text has the same bits alone or in a crowd, where the device rounds alike at
  every place of a batch (`Served.steady` looks). With the shape 1 these are the bits of `TextModel.sample(batch=1)`.
- On a CPU products with many rows may round alike in batches of any size. Where they do (it looks, too), the rest goes
  row by row, and the text has those same bits in batches of several shapes (`served.fitted`).
- Otherwise, with several shapes, a draw on the border between two tokens may fall on the other side in another one.

A jump that remembers, or that does not say that it goes row by row, takes its rows one at a time.

Rows that share a pass are a `Crowd`, whose state lies in one tensor on the device. As long as nobody comes or leaves,
the next pass takes it as it is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from tsdfm.flow.jump import Jump, Steps, Stops, stops
from tsdfm.flow.noise import sent
from tsdfm.flow.walk import Model, Walk


@dataclass(eq=False)
class Row:
    """One text being written, after `passes` passes along its `steps`: row `place` of a crowd.

    `alike` is equal for rows whose jump is the same, and `shown` are the tokens that a watcher has seen.
    """

    jump: Jump
    steps: Steps
    alike: str
    passes: int = 0
    taken: int = 0
    written: bool = False
    shown: list[int] | None = None
    crowd: Crowd = field(init=False, repr=False)
    place: int = 0
    last: int = field(init=False)
    """How many steps it takes."""
    shares: bool = field(init=False)
    """May it step beside others?"""

    def __post_init__(self) -> None:
        self.last, self.shares = len(self.steps), getattr(self.jump, "row_wise", False)

    @property
    def x(self) -> Tensor:
        """Its state [1, L]."""
        return self.crowd.x[self.place : self.place + 1]

    @property
    def of(self) -> int:
        """Passes that it takes at most."""
        return self.last + int(self.jump.final_pass)

    @property
    def t(self) -> float:
        """The time it has reached."""
        return self.steps[self.taken - 1][1] if self.taken else self.steps[0][0]

    @property
    def alone(self) -> bool:
        """Must its next pass be its own? After the last step what comes is the jump's last word."""
        return not self.shares or self.taken == self.last

    def stepped(self, passes: int, done: bool) -> None:
        """A step of so many passes has been made: is the text written?"""
        self.passes += passes
        self.taken = self.last if done else self.taken + 1
        self.written = self.taken == self.last and not self.jump.final_pass


@dataclass(eq=False)
class Crowd:
    """Rows that share passes: the walk of all of them, and their state x [B, L].

    `bad` [B], if there is any, says of passes before this walk's own whether there were logits that are not numbers.
    """

    walk: Walk
    x: Tensor
    rows: list[Row]
    bad: Tensor | None = None

    def __post_init__(self) -> None:
        for place, row in enumerate(self.rows):
            row.crowd, row.place = self, place

    @property
    def flags(self) -> Tensor:
        """Had any pass that a row took part in logits that are not numbers? [B]"""
        mine = self.walk.shaper.bad.repeat(len(self.rows))
        return mine if self.bad is None else self.bad | mine

    def select(self, rows: Sequence[Row]) -> Crowd:
        """Some of its rows by themselves."""
        places = [row.place for row in rows]
        index = sent(torch.tensor(places), self.x.device)
        return Crowd(self.walk.select(places, index), self.x[index], list(rows), self.flags[index])

    @staticmethod
    def joined(crowds: Sequence[Crowd], model: Model) -> Crowd:
        """The rows of several, which share passes from now on."""
        walk = Walk.together([crowd.walk for crowd in crowds], model)
        rows = [row for crowd in crowds for row in crowd.rows]
        return Crowd(walk, torch.cat([crowd.x for crowd in crowds]), rows, torch.cat([crowd.flags for crowd in crowds]))

    def by(self, model: Model) -> Crowd:
        """The same, with this model for its next pass."""
        if self.walk.model is not model:
            self.walk = replace(self.walk, model=model)
        return self

    def step(self) -> float:
        """The next pass; its seconds, without those of what is done for each row."""
        walk, first = self.walk, self.rows[0]
        if first.taken == first.last:  # it is alone
            began = time.perf_counter()
            self.x, _ = walk.finish(self.x)
            first.passes, first.written = first.passes + 1, True
            return time.perf_counter() - began
        t, h = times(self.rows, self.x.device)
        began = time.perf_counter()
        self.x, _ = walk.step(self.x, t, h)
        spent, passes = time.perf_counter() - began, int(getattr(walk.model, "passes_a_call", 1))
        done = [False] * len(self.rows)
        if stops(type(walk.jump)):
            done = cast(Stops, walk.jump).done(self.x).tolist()
        for row, ends in zip(self.rows, done, strict=True):
            row.stepped(passes, ends)
        return spent

    def solve(self) -> float | None:
        """All passes of a single row at once, if its model makes them so and none was made; their seconds."""
        row, began = self.rows[0], time.perf_counter()
        model = None if row.taken else self.walk.whole(self.x, row.steps)
        if model is None:
            return None
        self.x = model.solve(self.walk, self.x, row.steps)
        row.passes = row.taken = row.last
        row.written = True
        return time.perf_counter() - began


def gathered(rows: Sequence[Row], model: Model) -> Crowd:
    """The crowd of exactly these rows, which share a pass of `model`: the one they are in, if they are all of it."""
    first, parts = rows[0].crowd, dict[Crowd, list[Row]]()
    if len(first.rows) == len(rows) and all(row.crowd is first for row in rows):
        return first.by(model)
    for row in rows:
        parts.setdefault(row.crowd, []).append(row)
    crowds = [crowd if len(some) == len(crowd.rows) else crowd.select(some) for crowd, some in parts.items()]
    return crowds[0].by(model) if len(crowds) == 1 else Crowd.joined(crowds, model)


class Fetch:
    """The tokens of rows on their way from the device: those of this moment, whatever the rows do then."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.found = dict[Crowd, tuple[Tensor, Tensor]]()
        self.rows = [(row.crowd, row.place) for row in rows]
        for crowd in dict.fromkeys(crowd for crowd, _ in self.rows):
            self.found[crowd] = to_host(crowd.x), to_host(crowd.flags)
        self.arrived = marked(rows[0].crowd.x.device)

    def get(self) -> list[tuple[list[int], bool]]:
        """The tokens of each row, and whether any of its logits were no numbers; the device is waited for once."""
        wait_for(self.arrived)
        found = {crowd: (tokens, bad.tolist()) for crowd, (tokens, bad) in self.found.items()}
        return [(found[crowd][0][place].tolist(), found[crowd][1][place]) for crowd, place in self.rows]


def to_host(x: Tensor) -> Tensor:
    """A copy of x on the host, which is there once the device has come so far."""
    if x.device.type == "cpu":
        return x
    return torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)


def marked(device: torch.device) -> Any:
    """This place in the work of a device; none where work is done at once."""
    if device.type == "cpu":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def reached(mark: Any) -> bool:
    """Has the device come to a mark? While it has not, what the host does costs no time."""
    return mark is None or bool(mark.query())


def wait_for(mark: Any) -> None:
    """Until the device has come to a mark."""
    if mark is not None:
        mark.synchronize()


def times(rows: Sequence[Row], device: torch.device) -> Tensor:
    """t and h of the next step of each row, [2, B] float64; the device is not waited for."""
    steps = [row.steps[row.taken] for row in rows]
    return sent(torch.tensor([[a for a, _ in steps], [b - a for a, b in steps]], dtype=torch.float64), device)


def groups(rows: Sequence[Row], shapes: Sequence[int]) -> Iterator[tuple[list[Row], int]]:
    """The rows of one pass in batches, each with the shape it is filled up to: the smallest that holds it."""
    shared, most = dict[str, list[Row]](), max(shapes)
    for row in rows:
        if row.alone or most == 1:
            yield [row], 1
        else:
            shared.setdefault(row.alike, []).append(row)
    for some in shared.values():
        for start in range(0, len(some), most):
            part = some[start : start + most]
            yield part, min(shape for shape in shapes if shape >= len(part))
