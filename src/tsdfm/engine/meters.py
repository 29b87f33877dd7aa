"""Running sums of what a step measures, kept on the device and read only when a line is due."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tsdfm.engine.distributed import World
from tsdfm.errors import UserError

GOOD, SKIPPED, IN_A_ROW, WORST = "good steps", "skipped", "bad in a row", "most bad in a row"
COUNTS = (GOOD, SKIPPED, IN_A_ROW, WORST)


class Meters:
    """Means since the last report over the steps whose gradient was finite, and the count of those that were not.

    Sums are float64, and go into a checkpoint, so that a resumed run reports the same digits as an unbroken one.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self._sums: dict[str, Tensor] = {}
        self._counts = {name: self._zero() for name in COUNTS}

    def _zero(self) -> Tensor:
        return torch.zeros((), dtype=torch.float64, device=self.world.device)

    @torch.no_grad()
    def add(self, values: Mapping[str, Tensor], bad: Tensor) -> None:
        """Take in one step; `bad` [] says that its gradient was not finite and its update skipped."""
        zero, ill = self._zero(), bad.to(torch.float64)
        for name, value in values.items():
            before = self._sums.get(name, zero)
            self._sums[name] = before + torch.where(bad, zero, value.detach().to(torch.float64))
        counts = self._counts
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
        tensors = {**self._sums, **self._counts}
        packed = torch.stack(list(tensors.values())).tolist()
        return self.world.mean(dict(zip(tensors, packed, strict=True)))

    def load(self, state: Mapping[str, float]) -> None:
        """Go on from a checkpoint's sums."""
        found = {name: self._zero() + value for name, value in state.items()}
        self._counts = {name: found.pop(name) for name in COUNTS}
        self._sums = found

    def guard(self, most: int, advice: str) -> None:
        """Stop the run if `most` updates in a row had to be skipped."""
        worst = int(self._counts[WORST].item())
        if worst >= most:
            raise UserError(
                f"the gradient was not finite in {worst} steps in a row: lower lr or check the data; {advice}"
            )
