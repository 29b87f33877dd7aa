"""Variants that are timed side by side: built one after another while there is time, then timed in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch

from benchmarks.harness import Clock, Step, built, graphs, guarded, interleaved, milliseconds, say


@dataclass
class Variants:
    """What is built so far. `turns` are the steps that timing will take of each: time is kept back for them.

    Building one takes as long as the slowest so far, checks and all; timing it as long as the slowest of these does.
    """

    device: torch.device
    clock: Clock
    warm: int
    turns: int
    steps: dict[str, Step] = field(default_factory=dict)
    peaks: dict[str, float | None] = field(default_factory=dict)
    paces: dict[str, float] = field(default_factory=dict)  # seconds of a step, about
    longest: float = 0.0  # seconds that went into one of them, up to the next
    begun: float | None = None
    left: list[str] = field(default_factory=list)

    def estimate(self) -> float:
        """Seconds to build one more, and to time it with the others; 0 before the first."""
        self.lap()
        return self.longest + self.turns * (sum(self.paces.values()) + max(self.paces.values(), default=0.0))

    def fits(self, name: str) -> bool:
        """Is there time for one more? If not, it is put down as left out."""
        if self.clock.allows(self.estimate(), name):
            return True
        self.left.append(name)
        return False

    def lap(self) -> None:
        """What was begun last ends here."""
        now = time.perf_counter()
        if self.begun is not None:
            self.longest = max(self.longest, now - self.begun)
        self.begun = now

    def build(self, name: str, build: Callable[[], Step], held: int | None = None) -> bool:
        """Build and warm one; its peak counts from `held` bytes. Says whether that went well."""
        start, before = time.perf_counter(), graphs()
        made = guarded(name, partial(built, build, self.device, self.warm, held))
        if made is None:
            return False
        self.steps[name], self.peaks[name], self.paces[name] = made
        peak = f"{made.peak:.2f} GiB" if made.peak is not None else "not measured"
        spent = time.perf_counter() - start
        say(f"  {name}: warm after {spent:.0f} s, {graphs() - before} graphs compiled, peak {peak}")
        return True

    def also(self, name: str, step: Step, warm: int = 1) -> None:
        """One that steps a learner which is warm already: its memory is not its own."""
        spent = [guarded(name, partial(milliseconds, step, n, self.device)) for n in range(warm)]
        if None not in spent:
            self.steps[name], self.peaks[name], self.paces[name] = step, None, spent[-1] / 1e3

    def times(self, repeats: int, first: int | None = None) -> dict[str, list[float]]:
        """Milliseconds of `repeats` steps of each of them in turn, those that fail left out; numbered from `first`."""
        self.lap()
        self.begun = None  # timing is not building
        return interleaved(self.steps, self.device, repeats, self.warm + 3 if first is None else first)

    def cost_of_a_pair(self) -> float:
        """Seconds to build and time the two that every shape begins with, judging by these."""
        return 2 * (self.longest + self.turns * max(self.paces.values(), default=0.0))
