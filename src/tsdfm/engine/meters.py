"""Running sums of what a step measures, kept on the device and read only when a line is due."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tsdfm.engine.distributed import Processes
from tsdfm.errors import UserError

GOOD, SKIPPED, IN_A_ROW, WORST = "good steps", "skipped", "bad in a row", "most bad in a row"
COUNTS = (GOOD, SKIPPED, IN_A_ROW, WORST)


class Meters:
    """Means since the last report over the steps whose gradient was finite, and the count of those that were not.

    Sums are float64, and go into a checkpoint, so that a resumed run reports the same digits as an unbroken one.
    """

    def __init__(self, world: Processes) -> None:
        self.world = world
        self._sums: dict[tuple[str, ...], Tensor] = {}  # by the names of its numbers: one vector for a whole step
        self._counts = {name: self._zero() for name in COUNTS}

    def _zero(self) -> Tensor:
        return torch.zeros((), dtype=torch.float64, device=self.world.device)

    @torch.no_grad()
    def add(self, values: Mapping[str, Tensor], bad: Tensor) -> None:
        """Take in one step; `bad` [] says that its gradient was not finite and its update skipped."""
        ill, counts = bad.to(torch.float64), self._counts
        if values:
            names = tuple(values)
            found = torch.stack([value.detach().to(torch.float64) for value in values.values()]).masked_fill(bad, 0.0)
            self._sums[names] = self._sums[names] + found if names in self._sums else found
        row = (counts[IN_A_ROW] + 1) * ill
        self._counts = {
            GOOD: counts[GOOD] + (1 - ill),
            SKIPPED: counts[SKIPPED] + ill,
            IN_A_ROW: row,
            WORST: torch.maximum(counts[WORST], row),
        }

    def report(self) -> dict[str, float]:
        """The means over all processes, and `skipped` since the start of the run; the sums begin anew."""
        values = self.state()
        self._sums = {}
        self._counts[GOOD], self._counts[WORST] = self._zero(), self._counts[IN_A_ROW].clone()
        good = values[GOOD]
        means = {name: value / good if good else float("nan") for name, value in values.items() if name not in COUNTS}
        return {**means, "skipped": values[SKIPPED]}

    def state(self) -> dict[str, float]:
        """Every sum and count, averaged over processes, in one transfer."""
        names = [name for group in self._sums for name in group] + list(self._counts)
        packed = torch.cat([*self._sums.values(), torch.stack(list(self._counts.values()))]).tolist()
        sums: dict[str, float] = {}
        for name, value in zip(names, packed, strict=True):  # a name may be in several groups
            sums[name] = sums.get(name, 0.0) + value
        return self.world.mean(sums)

    def load(self, state: Mapping[str, float]) -> None:
        """Go on from a checkpoint's sums."""
        self._counts = {name: self._zero() + state.get(name, 0) for name in COUNTS}
        values = {name: value for name, value in state.items() if name not in COUNTS}
        vector = torch.tensor(list(values.values()), dtype=torch.float64, device=self.world.device)
        self._sums = {tuple(values): vector} if values else {}

    def guard(self, most: int, advice: str) -> None:
        """Stop the run if `most` updates in a row had to be skipped."""
        worst = int(self._counts[WORST].item())
        if worst >= most:
            raise UserError(
                f"the gradient was not finite in {worst} steps in a row: lower lr or check the data; {advice}"
            )
