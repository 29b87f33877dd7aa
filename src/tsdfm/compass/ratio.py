"""The objective `ratio` (beyond the paper): tell the true next state from a model's jumps.

h from the levels, t ~ U(t_min, 1 − h);   positive: x_{t+h} of the pair;   negatives: n jumps of the proposer from x_t
loss = −log e^{−E(x_{t+h})} / Σ e^{−E} + λ·E(x_{t+h})²

At its minimum −E is, up to a constant of (x_t, h), the log-ratio of the true law of x_{t+h} to the proposer's: what a
jump that moves every position by itself gets wrong. Jumps that hit the true state stay in the sum, since leaving them
out would tilt that ratio; no accuracy can be asked of them, so there they are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from tsdfm.compass.exam import CANDIDATE_STREAM, Candidates, Exam, score_candidates, true_and_jumps
from tsdfm.compass.loss import nce, regularisation
from tsdfm.compass.negatives import Negatives
from tsdfm.compass.network import CompassSpec
from tsdfm.compass.settings import CompassSettings, RatioSettings
from tsdfm.compass.states import walk
from tsdfm.compass.task import shares
from tsdfm.engine.distributed import Processes
from tsdfm.flow import RowNoise, row_times
from tsdfm.nn.velocity import Velocity
from tsdfm.tokens.loader import Batch
from tsdfm.tokens.rows import TokenRows


def step_times(rows: Tensor, seed: int, settings: RatioSettings, noise: RowNoise) -> tuple[Tensor, Tensor]:
    """t [B] and h [B], float64: h one of the levels, all alike, and t ~ U(t_min, 1 − h)."""
    levels = torch.tensor(settings.levels, dtype=torch.float64, device=rows.device)
    h = levels[(noise.uniform((len(rows),)).to(rows.device) * len(levels)).to(torch.int64)]
    return settings.t_min + row_times(rows, seed) * (1.0 - h - settings.t_min), h


class RatioTask:
    """What the training loop asks for, under objective `ratio`."""

    prompts: ClassVar[bool] = True

    def __init__(
        self,
        settings: CompassSettings,
        spec: CompassSpec,
        proposer: Velocity,
        negatives: Negatives,
        valid: TokenRows | None,
        world: Processes,
    ) -> None:
        self.settings, self.spec, self.proposer, self.world = settings, spec, proposer, world
        self.seed = settings.loop.seed
        self.source, self.schedule = spec.flow_source(), spec.flow_schedule()
        torch.manual_seed(self.seed)  # fresh weights; nothing else uses torch's own generator here
        self.model = spec.network()
        self.exam = None if valid is None else Exam(valid, spec, negatives, 0.0, self.seed, world.device)

    def loss(self, model: nn.Module, batch: Batch, step: int) -> tuple[Tensor, Mapping[str, Tensor]]:
        """−log e^{−E(x_{t+h})} / Σ e^{−E} + λ·E(x_{t+h})², the mean over rows."""
        ratio, noise = self.settings.ratio, RowNoise(self.seed, batch.rows)
        states = walk(batch.tokens, self.source, self.schedule, self.spec.anchor, noise, batch.given)
        t, h = step_times(batch.rows, self.seed, ratio, noise)
        x, _ = true_and_jumps(states, noise, self.proposer, t, h, ratio.n, ratio.jump)
        energies = model(x.flatten(0, 1)).view(x.shape[:2])
        contrast = nce(energies[:, 0], energies[:, 1:]).mean()
        leash = regularisation(energies[:, 0]).mean()
        return contrast + ratio.lambda_reg * leash, {"nce": contrast, "reg": leash, "energy": energies[:, 0].mean()}

    def evaluate(self, model: nn.Module, step: int) -> Mapping[str, float]:
        """Held-out NCE (the best checkpoint has the lowest), pair accuracy, and the spread between candidates."""
        if self.exam is None:
            return {}
        sums: dict[str, float] = {}
        for numbers in shares(self.settings, self.world):
            for name, value in tally(self._ask(model, self.exam, numbers)).items():
                sums[name] = sums.get(name, 0.0) + value
        means = self.world.mean(sums)
        loss = means["nce"] / means["rows"]
        accuracy = means["right"] / means["pairs"] if means["pairs"] else 0.0
        return {"nce": loss, "pair_accuracy": accuracy, "spread": means["spread"] / means["rows"], "shortfall": loss}

    def _ask(self, model: nn.Module, exam: Exam, numbers: Tensor) -> Candidates:
        ratio = self.settings.ratio
        states, noise = exam.walk(numbers, CANDIDATE_STREAM)
        t, h = step_times(numbers.to(self.world.device), self.seed, ratio, noise)
        return score_candidates(model, states, noise, self.proposer, t, h, ratio.n, ratio.jump)


def tally(found: Candidates) -> dict[str, float]:
    """Sums over rows of what is asked about candidates."""
    right = (found.true[:, None] < found.energies) & ~found.same
    return {
        "rows": float(len(found.true)),
        "nce": nce(found.true, found.energies).double().sum().item(),
        "right": float(right.sum()),
        "pairs": float((~found.same).sum()),
        "spread": found.spread.double().sum().item(),
    }
