"""Training of a matched student: `StudentTask` with rows that learn by matching; the others are its anchor.

own, data       matched rows (`match`), from texts that the student is writing, or from noised data; the watch counts
                their tokens but for ends, with which short texts are filled up
chain, floor    the anchor's rows: FS-DFM's large and smallest steps (or TS-DFM's, by another roll-out)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from tsdfm.distil.chain import send
from tsdfm.distil.matching.match import Match, Matched
from tsdfm.distil.matching.running import Running
from tsdfm.distil.matching.times import CHAIN, FLOOR, OWN, MatchedTimes
from tsdfm.distil.matching.watch import Watch
from tsdfm.distil.parts import Floor, Late, Parts, States
from tsdfm.distil.stats import Stats
from tsdfm.distil.task import STEP_STREAM, StudentTask
from tsdfm.engine.task import Context
from tsdfm.flow import Bound, RowNoise
from tsdfm.kernels.fused import Objective
from tsdfm.nn.bound import EVAL_STREAM
from tsdfm.nn.velocity import VelocitySpec
from tsdfm.tokens.loader import Batch
from tsdfm.tokens.rows import TokenRows

MATCH_STREAM = 11  # draws of x, and how it is noised again
TEXT_STREAM = 13  # how the running texts go on


@dataclass(frozen=True)
class Weighed:
    """A floor whose rows weigh `weight` times as much."""

    floor: Floor
    weight: float

    def __call__(self, states: States, x_1: Tensor, x_t: Tensor) -> tuple[Objective | None, Tensor]:
        objective, each = self.floor(states, x_1, x_t)
        return objective, each * self.weight


class MatchingTask(StudentTask):
    """A student, its auxiliary, the texts it is writing, and the watch over them."""

    held_out, everywhere = "gap", True
    times: MatchedTimes

    def __init__(
        self,
        settings: Any,
        spec: VelocitySpec,
        valid: TokenRows | None,
        made_of: Parts,
        bound: Bound | None,
        match: Match,
        watch: Watch,
        anchor_weight: float = 1.0,
    ) -> None:
        """`anchor_weight` is that of the anchor's rows beside the matched ones."""
        super().__init__(settings, spec, valid, replace(made_of, floor=Weighed(made_of.floor, anchor_weight)), bound)
        self.match, self.watch, self.auxiliary, self.anchor_weight = match, watch, match.auxiliary, anchor_weight
        self.running = Running(settings.loop.batch, spec.length, self.schedule)
        self.end_of_text = TokenRows(settings.tokens, "train").end_of_text if spec.anchor else -1
        self.whole = settings.auxiliary.steps > 1

    def bind(self, context: Context) -> None:
        super().bind(context)
        self.auxiliary.bind(context)
        self.watch.bind(context, self.model, self.auxiliary)
        self.running.bind(context.world)
        if self.match.width is not None:
            self.match.width.bind(context.world)
        self.match.teacher = self.match.teacher.run_by(context.runner)

    def loss(self, model: nn.Module, batch: Batch, step: int) -> tuple[Tensor, Mapping[str, Tensor]]:
        if self.watch.look(step):
            self.running.begin_anew()
        self.auxiliary.split(len(batch.rows))
        numbers, _ = batch.on_host()
        kinds, order = torch.sort(self.times.kinds(numbers), stable=True)
        found, late = self.plan(batch, numbers[order], kinds, order, step)
        with torch.set_grad_enabled(step >= self.auxiliary.own.alone):
            goal, each, more = self.anchor(batch, found.after(late.rows), step)
            large, small = self.losses(model, found, goal, each, late)
        return large + small, {**self.match.measured(), **self.watch.found, **more}

    def plan(self, batch: Batch, numbers: Tensor, kinds: Tensor, order: Tensor, step: int) -> tuple[States, Late]:
        """The states of a batch's rows in their `order` by kind, and what the matched ones learn."""
        own, matched, large = (int((kinds < kind).sum()) for kind in (OWN + 1, CHAIN, FLOOR))
        steps = RowNoise(self.seed, numbers, STEP_STREAM)
        k, j = self.times.passes.draw(steps.select(torch.arange(matched)))
        places = numbers[:own] % self.settings.loop.batch
        k[:own], j[:own], goes = self.running.next(places, k[:own], j[:own])
        t, h = self.times.levels.draw(kinds == CHAIN, steps, step)
        t[:matched], h[:matched] = self.times.passes.times(k, j)
        found = self.noised(batch.tokens, batch.rows, numbers, order, t, h, large, 0, batch.given)
        going, where, t, h = send([goes.nonzero()[:, 0], places[goes], t[:matched], h[:matched]], found.x_t)
        found.x_t[going], known = self.running.at(where)
        given = None
        if found.given is not None:
            found.given[going] = known
            given = found.given[:matched]
        noise = self.noise(found, matched, MATCH_STREAM)
        rows = Matched(found.x_1[:matched], found.x_t[:matched], t, h, own, noise, given)

        def took(x: Tensor) -> None:
            """What is done with the texts that were drawn."""
            free, seen = slice(self.spec.anchor, None), slice(own or matched)
            said = x if given is None else torch.where(given, rows.x_1, x)  # for the width it counts alike in both
            told, data = said[seen, free], rows.x_1[seen, free]
            counted = told != self.end_of_text, data != self.end_of_text  # a short text is no narrow one
            if given is not None:
                counted = counted[0] & ~given[seen, free], counted[1] & ~given[seen, free]
            self.watch.add(told, data, self.spec.vocab, counted)
            if self.match.width is not None:
                self.match.width.add(said[:, free].flatten(), rows.x_1[:, free].flatten())
            goings = (x[:own], rows.z_a[:own], t[:own], h[:own], self.noise(found, own, TEXT_STREAM))
            self.running.go_on(places, k[:own], j[:own], *goings, given=None if given is None else given[:own])

        return found, Late(matched, lambda hidden, head: self.match(rows, hidden, head, step, took))

    def noise(self, found: States, rows: int, stream: int) -> RowNoise:
        """Uniforms of the first rows' own, apart from those that drew their states."""
        return RowNoise(self.seed, found.noise.rows[:rows], stream)

    def anchor(
        self, batch: Batch, rest: States, step: int
    ) -> tuple[Objective | None, Tensor | None, Mapping[str, Tensor]]:
        """What the anchor's large steps learn and with which weights, and what was measured meanwhile."""
        if not self.times.anchor:
            return None, None, {}
        teacher, stats = self.teacher.at(step), self.rollout.stats(step)
        self.rollout.begin(batch, teacher, step)
        goal, each = self.rollout(teacher, rest, step, stats)
        one = torch.ones(
            rest.large * (self.spec.length - self.spec.anchor), dtype=torch.float64, device=rest.x_t.device
        )
        share = self.times.anchor * self.times.levels.share
        more = {} if stats is None else self.rollout.measured(stats, len(batch.rows) * share, rest.x_t.device)
        return goal, (one if each is None else each) * self.anchor_weight, more

    def held_out_loss(self, model: nn.Module, found: States, step: int, last: int, stats: Stats | None) -> Tensor:
        """The mean reward of held-out rows, with the auxiliary as it is."""
        t, h = send([found.t, found.h], found.x_t)
        noise = self.noise(found, len(found.x_t), MATCH_STREAM + EVAL_STREAM)
        rows = Matched(found.x_1, found.x_t, t, h, 0, noise, found.given)
        late = Late(len(found.x_t), lambda hidden, head: self.match(rows, hidden, head, None, lambda x: None))
        self.auxiliary.net.eval()
        gap, _ = self.losses(model, found, None, None, late)
        self.auxiliary.net.train()
        return gap

    def parts(self) -> dict[str, Mapping[str, Tensor]]:
        """What a checkpoint holds besides the student: the auxiliary, the running texts, what the watch has seen."""
        width = {} if self.match.width is None else self.match.width.parts()
        texts = self.running.parts() if self.times.own > 0 else {}
        return {**super().parts(), **self.auxiliary.parts(), **self.watch.parts(), **texts, **width}
