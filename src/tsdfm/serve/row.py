"""Texts on their way, and one network pass for some of them.

A flow model's network takes a time per row, so rows at different steps can share a pass (`flow.walk.Walk`). What
holds of a text, whatever is written beside it:

- Its random numbers depend on its seed and number alone.
- A pass goes through the network in batches of fixed shapes, which are filled up. With one shape (on a CPU it is a
  single row) every product is made in that shape, whoever else is there: the text has the same bits alone or in a
  crowd, where the device rounds alike at every place of a batch (`Served.steady` looks). With the shape 1 these are
  the bits of `TextModel.sample(batch=1)`.
- With several shapes, a draw on the border between two tokens may fall on the other side in a batch of another shape.

A jump that remembers, or that does not say that it goes row by row, takes its rows one at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, cast

import torch
from torch import Tensor

from tsdfm.flow.jump import Stops, stops
from tsdfm.flow.walk import Model, Walk


@dataclass(eq=False)
class Row:
    """One text being written: `x` [1, L] is its state after `passes` passes along the times `points`.

    `alike` is equal for rows whose jump is the same, and `shown` are the tokens that a watcher has seen.
    """

    walk: Walk
    x: Tensor
    points: tuple[float, ...]
    alike: str
    passes: int = 0
    taken: int = 0
    written: bool = False
    shown: list[int] | None = None
    flags: list[Tensor] = field(default_factory=list)
    """Of the passes it shared: were there logits that are not numbers?"""
    stops: bool = field(init=False)

    def __post_init__(self) -> None:
        self.stops = stops(type(self.walk.jump))

    @property
    def of(self) -> int:
        """Passes that it takes at most."""
        return len(self.points) - 1 + int(self.walk.jump.final_pass)

    @property
    def t(self) -> float:
        """The time it has reached."""
        return self.points[min(self.taken, len(self.points) - 1)]

    @property
    def alone(self) -> bool:
        """Must its next pass be its own?"""
        at_the_end = self.taken == len(self.points) - 1  # what comes is the jump's last word
        return at_the_end or not getattr(self.walk.jump, "row_wise", False)

    def step(self) -> float:
        """The next pass, by itself; its seconds."""
        began = time.perf_counter()
        if self.taken == len(self.points) - 1:
            self.x, _ = self.walk.finish(self.x)
            self.passes += 1
            self.written = True
        else:
            self.x, _ = self.walk.step(self.x, *times([self], self.x.device))
            self.stepped()
        return time.perf_counter() - began

    def solve(self) -> float:
        """All of its passes at once, where its model makes them so; their seconds."""
        began, model = time.perf_counter(), self.walk.whole(self.x, self.points)
        assert model is not None
        self.x = model.solve(self.walk, self.x, self.points)
        self.passes = self.taken = len(self.points) - 1
        self.written = True
        return time.perf_counter() - began

    def stepped(self) -> None:
        """A step has been made: is the text written?"""
        self.passes += int(getattr(self.walk.model, "passes_a_call", 1))
        self.taken += 1
        if self.stops and bool(cast(Stops, self.walk.jump).done(self.x)[0]):
            self.taken = len(self.points) - 1
        self.written = self.taken == len(self.points) - 1 and not self.walk.jump.final_pass


class Fetch:
    """The tokens of rows on their way from the device: those of this moment, whatever the rows do then."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.counts = [1 + len(row.flags) for row in rows]
        flags = [flag for row in rows for flag in (row.walk.shaper.bad, *row.flags)]
        self.tokens, self.flags = (to_host(x) for x in (torch.cat([row.x for row in rows]), torch.stack(flags)))
        self.arrived = marked(rows[0].x.device)

    def get(self) -> list[tuple[list[int], bool]]:
        """The tokens of each row, and whether any of its logits were no numbers; the device is waited for once."""
        wait_for(self.arrived)
        bad = iter(self.flags.tolist())
        return [(text, any(list(islice(bad, n)))) for text, n in zip(self.tokens.tolist(), self.counts, strict=True)]


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
    """t and h of the next step of each row, [2, B] float64."""
    steps = [row.points[row.taken : row.taken + 2] for row in rows]
    return torch.tensor([[a for a, _ in steps], [b - a for a, b in steps]], dtype=torch.float64, device=device)


def step_together(rows: Sequence[Row], model: Model) -> float:
    """The next pass of rows that may share it; its seconds, without those of laying rows together and apart."""
    walk = Walk.together([row.walk for row in rows], model)
    x, (t, h) = torch.cat([row.x for row in rows]), times(rows, rows[0].x.device)
    began = time.perf_counter()
    x, _ = walk.step(x, t, h)
    spent = time.perf_counter() - began
    for row, after in zip(rows, torch.split(x, 1), strict=True):
        row.x = after
        row.flags.append(walk.shaper.bad)
        row.stepped()
    return spent


def groups(rows: Sequence[Row], shapes: Sequence[int]) -> Iterator[tuple[list[Row], int]]:
    """The rows of one pass in batches, each with the shape it is filled up to: the smallest that holds it."""
    shared = dict[str, list[Row]]()
    for row in rows:
        if row.alone or max(shapes) == 1:
            yield [row], 1
        else:
            shared.setdefault(row.alike, []).append(row)
    for some in shared.values():
        for start in range(0, len(some), max(shapes)):
            part = some[start : start + max(shapes)]
            yield part, min(shape for shape in shapes if shape >= len(part))
