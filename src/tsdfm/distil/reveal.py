"""The target of a large step of a masked model: m smaller ancestral steps of the teacher, told position by position.

    x^0 = x_t,   x^{k+1} = the teacher's ancestral step of h/m from x^k at t_k = t + k·h/m,   k = 0 … m − 1
    target of a position   p_teacher(· | x^k, t_k) of the step k that revealed it,
                           that of the last step where it is still [MASK] before it

With m = 1 it is the teacher's own law at x_t. Whether a [MASK] is revealed by a step, with probability
(κ(t_{k+1}) − κ(t_k))/(1 − κ(t_k)), does not depend on the teacher: it is planned on the host before any pass. Only what
a step reveals needs logits, to draw its tokens; the last step needs none. Of every position one hidden state is kept,
that of its step, and the target is the head of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from tsdfm.distil.chain import Heads, send
from tsdfm.distil.parts import States, Teacher
from tsdfm.distil.stats import Stats
from tsdfm.engine.task import Context
from tsdfm.flow import RowNoise, Schedule, draw, uniform
from tsdfm.kernels.fused import Objective, Target
from tsdfm.nn.velocity import VelocitySpec

REVEAL_STREAM = 1 << 16  # which positions are revealed, apart from the streams of states and draws


def plan(masked: Tensor, length: int, noise: RowNoise, times: list[Tensor], schedule: Schedule) -> list[Tensor]:
    """The places [n_k] that step k = 0 … m − 2 reveals, of those `masked` [n] among the B·L; all on the host.

    `times` t_0 … t_{m−1} are [B] each; `noise` is that of the B rows. What no list has is revealed by the last step,
    or after it.
    """
    found, still = list[Tensor](), masked
    for t, s in pairwise(times):
        stay = schedule.survival(t, s)[:, None]
        u = noise.uniform((len(t), length))
        leaves = (u >= stay).flatten()[still]
        found.append(still[leaves])
        still = still[~leaves]
    return found


class Reveal:
    """The roll-out of `steps` ancestral steps; `objective` makes of the target what is minimised."""

    def __init__(self, spec: VelocitySpec, steps: int, objective: Callable[[Target], Objective]) -> None:
        self.spec, self.steps, self.objective = spec, steps, objective
        self.schedule = spec.flow_schedule()

    def bind(self, context: Context, teacher: Teacher, student: nn.Module) -> None: ...

    def begin(self, batch: Any, teacher: nn.Module, step: int) -> None: ...

    def stats(self, step: int | None) -> Stats | None:
        return None

    def __call__(
        self, teacher: nn.Module, states: States, step: int, stats: Stats | None
    ) -> tuple[Objective | None, Tensor | None]:
        return (self.objective(self.target(teacher, states)) if states.large else None), None

    @torch.no_grad()
    def target(self, teacher: nn.Module, states: States) -> Target:
        """The distributions of the learned positions [N] of the rows with a large step."""
        assert states.places is not None  # a model that answers at [MASK] alone
        rows, length = states.large, states.x_t.shape[1]
        t, h = states.t[:rows], states.h[:rows] / self.steps
        times = [t + k * h for k in range(self.steps)]
        own = RowNoise(states.noise.seed, states.numbers[:rows], states.noise.stream + REVEAL_STREAM)
        revealed = plan(states.places[0][: states.cut], length, own, times, self.schedule)
        sent = send([*times, h, *revealed], states.x_t)
        times, h, there = sent[: self.steps], sent[self.steps], sent[self.steps + 1 :]
        noise = states.noise.select(torch.arange(rows, device=states.noise.rows.device))
        x, heads, kept = states.x_t[:rows].flatten(), Heads(copy=False), list[tuple[Tensor, Tensor]]()

        def ask(time: Tensor, then: Any) -> Any:
            return teacher(x.view(rows, length), *self.spec.told(time.float(), h.float()), then=then)

        for time, places in zip(times, there, strict=False):  # all but the last
            u = uniform(noise, (rows, length), x.device).flatten()
            if len(places):
                few, logits = ask(time, lambda hidden, head, at=places: heads.logits(rows_of(hidden, at), head))
                x = x.index_copy(0, places, draw(logits, u.index_select(0, places)))
                kept.append((places, few))
        hidden, _ = ask(times[-1], heads.keep)
        for places, few in kept:
            hidden = hidden.flatten(0, 1).index_copy(0, places, few).view_as(hidden)
        return Target([states.learned(hidden)], (1.0,), *heads.parts())

    def measured(self, stats: Stats, rows: float, device: torch.device) -> Mapping[str, Tensor]:
        return {}

    def parts(self) -> dict[str, Mapping[str, Tensor]]:
        return {}


def rows_of(hidden: Tensor, places: Tensor) -> Tensor:
    """Hidden states [n, D] at places [n] among the B·L of hidden [B, L, D]."""
    return hidden.flatten(0, 1).index_select(0, places)
