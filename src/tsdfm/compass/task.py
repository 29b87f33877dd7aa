"""The paper's objective: NCE over corrupted states, a leash on the scale, and energy that falls with time.

t ~ U(0, 1), a tenth of them 1;   x_t and x_{t′} of one pair (x_0, x_1);   N negatives of x_t by the mixture
loss = NCE(E(x_t), E(x̃_1…N)) + λ_reg·E(x_t)² + λ_order·max(0, E(x_t) − E(x_{t′}) + γδ)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from tsdfm.compass.exam import BINS, Exam
from tsdfm.compass.frequency import frequency_bins
from tsdfm.compass.loss import nce, ordering, regularisation
from tsdfm.compass.negatives import Kit, Negatives, by_strategy
from tsdfm.compass.network import CompassSpec
from tsdfm.compass.settings import CompassSettings, NegativeSettings
from tsdfm.compass.states import positive_times, walk
from tsdfm.engine.distributed import Processes
from tsdfm.engine.runner import quickened
from tsdfm.engine.task import Context
from tsdfm.flow import RowNoise
from tsdfm.nn.velocity import Velocity
from tsdfm.tokens.loader import Batch
from tsdfm.tokens.rows import TokenRows, count_tokens

NEGATIVE_STREAM = 5


def make_negatives(
    settings: NegativeSettings,
    rows: TokenRows,
    spec: CompassSpec,
    teacher: Velocity | None,
    t_floor: float,
    device: torch.device,
) -> Negatives:
    """The strategies with what they need: token frequencies of the training split, and the teacher."""
    bins = frequency_bins(count_tokens(rows, settings.count_rows), settings.bins).to(device)
    return Negatives(Kit(spec.flow_source(), bins, settings, teacher, t_floor))


class CompassTask:
    """What the training loop asks for, under objective `nce`."""

    prompts: ClassVar[bool] = True

    def __init__(
        self,
        settings: CompassSettings,
        spec: CompassSpec,
        negatives: Negatives,
        valid: TokenRows | None,
        world: Processes,
    ) -> None:
        self.settings, self.spec, self.negatives, self.world = settings, spec, negatives, world
        self.seed = settings.loop.seed
        self.source, self.schedule = spec.flow_source(), spec.flow_schedule()
        torch.manual_seed(self.seed)  # fresh weights; nothing else uses torch's own generator here
        self.model = spec.network()
        self.exam = None if valid is None else Exam(valid, spec, negatives, settings.clean, self.seed, world.device)

    def bind(self, context: Context) -> None:
        """Compile and record the frozen teacher too, where the network is."""
        kit = self.negatives.kit
        if kit.teacher is not None and self.settings.loop.compile and context.graphs is not None:
            quick = replace(kit.teacher, net=quickened(kit.teacher.net, context.graphs))
            self.negatives.kit = replace(kit, teacher=quick)

    def states(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """[B, N + 2, L]: the positive, its earlier state, its negatives; δ [B]; what is void [B, N] and [B]."""
        settings, noise = self.settings, RowNoise(self.seed, batch.rows)
        states = walk(batch.tokens, self.source, self.schedule, self.spec.anchor, noise, batch.given)
        t = positive_times(batch.rows, self.seed, settings.clean, noise)
        delta = noise.uniform((len(t),)).to(t.device) * (settings.delta_max - settings.delta_min) + settings.delta_min
        x_t = states.at(t)
        earlier = states.at(torch.minimum(t, (t - delta).clamp(min=settings.t_floor)))
        host = getattr(batch, "numbers", None)  # where the feed gives them: nobody then waits for the device
        made = self.negatives(states, t, batch.rows, settings.negatives, self.seed, NEGATIVE_STREAM, host=host)
        stacked = torch.cat([x_t[:, None], earlier[:, None], made.states], dim=1)
        return stacked, delta, made.void, (earlier == x_t).all(-1)

    def loss(self, model: nn.Module, batch: Batch, step: int) -> tuple[Tensor, Mapping[str, Tensor]]:
        """NCE + λ_reg·E(x_t)² + λ_order·max(0, E(x_t) − E(x_{t′}) + γδ), the mean over rows."""
        stacked, delta, void, unmoved = self.states(batch)
        energies = model(stacked.flatten(0, 1)).view(stacked.shape[:2])
        positive, earlier, negatives = energies[:, 0], energies[:, 1], energies[:, 2:]
        contrast = nce(positive, negatives, void).mean()
        leash = regularisation(positive).mean()
        order = ordering(positive, earlier, delta, self.settings.gamma, unmoved).mean()
        loss = contrast + self.settings.lambda_reg * leash + self.settings.lambda_order * order
        return loss, {"nce": contrast, "reg": leash, "order": order, "energy": positive.mean()}

    def evaluate(self, model: nn.Module, step: int) -> Mapping[str, float]:
        """Accuracy of each strategy, the share of falling bins, and the score that chooses the best checkpoint."""
        if self.exam is None:
            return {}
        names = self.negatives.names
        sums: dict[str, float] = {}
        for numbers in shares(self.settings, self.world):
            pairs, curve = self.exam.pairs(model, numbers), self.exam.curve(model, numbers)
            right, asked = (pairs.lower & ~pairs.void).sum(0).tolist(), (~pairs.void).sum(0).tolist()
            found = {f"right {n}": x for n, x in zip(names, right, strict=True)}
            found |= {f"asked {n}": x for n, x in zip(names, asked, strict=True)}
            found |= {f"bin {i}": x for i, x in enumerate(curve.energies.double().sum(0).tolist())}
            sums = {name: sums.get(name, 0.0) + value for name, value in found.items()}
        return scores(self.world.mean(sums), self.negatives, self.world.size)


def scores(sums: Mapping[str, float], negatives: Negatives, processes: int = 1) -> dict[str, float]:
    """The metrics of an evaluation from its sums over rows, averaged over `processes`.

    The `shortfall`, by which checkpoints are chosen, is told in whole pairs: less than one pair is no difference.
    """
    accuracy = {n: sums[f"right {n}"] / sums[f"asked {n}"] if sums[f"asked {n}"] else 0.0 for n in negatives.names}
    falls = np.diff([sums[f"bin {i}"] for i in range(BINS + 1)]) < 0
    overall = by_strategy(accuracy, negatives.judged or negatives.names)
    smooth = float(falls.mean())
    out = {f"acc_{name}": value for name, value in accuracy.items()}
    score = overall + smooth
    pairs = processes * sum(sums[f"asked {n}"] for n in negatives.judged or negatives.names)
    shortfall = round((2.0 - score) * pairs) / pairs if pairs else 2.0 - score
    return {**out, "strategy_acc": overall, "smooth_pct": smooth, "score": score, "shortfall": shortfall}


def shares(settings: CompassSettings, world: Processes) -> Iterator[Tensor]:
    """This process's questions, in parts of as many rows as a training step has; equally many on every process."""
    count = max(1, settings.eval_rows // world.size)
    size = min(settings.loop.micro or settings.loop.batch, settings.loop.batch // world.size)
    first = world.rank * count
    for start in range(first, first + count, size):
        yield torch.arange(start, min(start + size, first + count))
