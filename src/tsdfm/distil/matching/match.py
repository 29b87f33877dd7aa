"""The objective of the matched rows: draw x from the student, noise it again, let the auxiliary learn, give the reward.

It is made inside the student's forward, where the student's own hidden state is at hand (`distil.parts.Late`). What is
kept are hidden states [N, D] and heads, never the logits of a whole batch.

Shapes: m matched rows of L positions, N of them free in all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from tsdfm.distil.answers import answer, in_chunks, log_probability, own_answer
from tsdfm.distil.matching.auxiliary import Auxiliary
from tsdfm.distil.matching.forms import Forms, Renoised
from tsdfm.distil.matching.tilt import Tilt
from tsdfm.distil.matching.width import Width
from tsdfm.distil.meaning import own_tokens, read
from tsdfm.flow import RowNoise, draw
from tsdfm.flow.loss import LAST_TIME
from tsdfm.kernels.fused import CrossEntropy, Divergence, Objective, Target
from tsdfm.kernels.reward import Reward, Together
from tsdfm.nn.velocity import Velocity, VelocitySpec

Weighted = tuple[Objective, Tensor]
"""An objective of positions [N] and their weights [N], float64."""


@dataclass(frozen=True)
class Matched:
    """Matched rows: x_1 and z_a [m, L], t and h [m] float64 on the device; the first `own` have texts of their own.

    `given` [m, L] is what z_a holds of a prompt, and keeps.
    """

    x_1: Tensor
    z_a: Tensor
    t: Tensor
    h: Tensor
    own: int
    noise: RowNoise
    given: Tensor | None = None

    def keep(self, x: Tensor) -> Tensor:
        """States or texts x [m, L] with what is given in its place."""
        return x if self.given is None else torch.where(self.given, self.z_a, x)


@dataclass
class Match:
    """What a matched row learns, and what the auxiliary learns of it.

    `by_bound` weighs a position by κ̇/(1−κ) at t_b; `pull` is the weight of KL(teacher ‖ student) at z_a.
    """

    spec: VelocitySpec
    teacher: Velocity
    auxiliary: Auxiliary
    forms: Forms
    clip: float
    by_bound: bool
    pull: float
    width: Width | None
    tilt: Tilt | None = None
    found: dict[str, Tensor] = field(init=False, default_factory=dict)

    def __call__(
        self, rows: Matched, hidden: Tensor, head: nn.Linear, step: int | None, took: Callable[[Tensor], None]
    ) -> Weighted:
        """The student's objective from its hidden state [N, D] at the free positions.

        `took` is given the texts [m, L] that were drawn. At a `step` of the training the auxiliary learns; in an
        evaluation (None) it only answers.
        """
        with torch.no_grad():
            own, again = own_tokens(self.spec, rows.z_a, rows.t), None
            student = own_answer(hidden, head, own)
            x = self.draw(rows, student)
            took(x)
            for _ in range(1 if step is None else self.auxiliary.own.steps):
                again = self.forms(x, rows.z_a, rows.t, rows.h, rows.noise)
                z_b = torch.cat([rows.x_1[:, : self.spec.anchor], again.z_b[:, self.spec.anchor :]], dim=1)
                at = (rows.keep(z_b), again.t_b, rows.h)
                teacher = answer(self.teacher.net, self.teacher.spec, *at)
                if step is None:
                    auxiliary = answer(self.auxiliary.runner, self.auxiliary.spec, *at)
                else:
                    lesson = self.lesson(rows, x, again, student, teacher)
                    auxiliary, self.found["aux"] = self.auxiliary.learn(*at, *lesson, step)
            assert again is not None
            if self.tilt is not None:
                teacher = self.tilt.on(teacher, at[0], self.spec.anchor)
            objective, weights = self.reward(rows, again, auxiliary, teacher, len(hidden))
            return read(objective, own), weights

    def free(self, x: Tensor) -> Tensor:
        """The free positions of rows [m, L], flat [N]."""
        return x[:, self.spec.anchor :].flatten()

    def known(self, rows: Matched) -> Tensor:
        """Where x is z_a for sure [m, L]: what has left [MASK], and what is given."""
        mask, z_a = self.forms.source.mask, rows.z_a
        sure = torch.zeros_like(z_a, dtype=torch.bool) if mask is None else z_a != mask
        return sure if rows.given is None else sure | rows.given

    def draw(self, rows: Matched, student: Target) -> Tensor:
        """x ~ g [m, L], and the text's own tokens where they are known."""
        u = self.free(rows.noise.uniform(rows.z_a.shape))
        drawn = in_chunks(student, lambda logits, part: draw(logits, u[part])).view(len(rows.z_a), -1)
        x = torch.cat([rows.x_1[:, : self.spec.anchor], drawn], dim=1)
        return torch.where(self.known(rows), rows.z_a, x)

    def weights(self, again: Renoised, counts: Tensor) -> Tensor:
        """The weight of each free position [N]: that of its time, where it `counts` [m, L], and z_b tells nothing."""
        schedule, mask = self.forms.schedule, self.forms.source.mask
        each = schedule.rate(again.t_b.clamp(max=LAST_TIME)) if self.by_bound else torch.ones_like(again.t_b)
        return self.free(each[:, None] * (counts if mask is None else counts & (again.z_b == mask)))

    def lesson(self, rows: Matched, x: Tensor, again: Renoised, student: Target, teacher: Target) -> Weighted:
        """What the auxiliary learns of z_b: the x that was drawn or, dense, the law of x given z_a and z_b.

        That law is z_b with the probability that z_b shows x, and else g; where z_a was known, it is z_a.
        """
        weights = self.weights(again, torch.ones_like(x, dtype=torch.bool)) / len(student.hidden[0])
        if rows.given is not None:  # the mean over a row's answer, as the student's own
            said = ~rows.given
            share = (said.shape[1] - self.spec.anchor) / said.sum(-1, keepdim=True).clamp(min=1).double()
            weights = weights * self.free(said * share)
        parts: list[Weighted] = [(CrossEntropy(self.free(x)), weights)]
        if self.auxiliary.own.dense:
            flat, known = self.free(again.z_b), self.free(self.known(rows))
            p = in_chunks(student, lambda logits, part: log_probability(logits, flat[part])).exp()
            shown = torch.where(known, 1.0, self.free(again.shown(self.whole(p, x))))
            token = torch.where(known, self.free(rows.z_a), flat.clamp(max=self.spec.vocab - 1))
            parts = [(CrossEntropy(token), shown * weights), (Divergence(student), (1 - shown) * weights)]
        if self.auxiliary.own.teacher:
            parts.append((Divergence(teacher), self.auxiliary.own.teacher * weights))
        return together(parts)

    def whole(self, free: Tensor, like: Tensor) -> Tensor:
        """Values [N] of the free positions as rows [m, L]; what is given has 1."""
        given = torch.ones_like(like[:, : self.spec.anchor], dtype=free.dtype)
        return torch.cat([given, free.view(len(like), -1)], dim=1)

    def reward(self, rows: Matched, again: Renoised, auxiliary: Target, teacher: Target, count: int) -> Weighted:
        """The dense reward where x was not known and, for noised data, the pull towards the teacher's own answer."""
        asked = ~self.known(rows)
        weights = self.weights(again, asked)
        wide = torch.float64 if auxiliary.weight.dtype == torch.float64 else torch.float32
        kept = torch.zeros(2, count, dtype=wide, device=weights.device)
        self.found |= {"kept": kept, "weights": weights, "asked": self.free(asked).double()}
        biased = teacher if self.width is None else self.width.on(teacher)
        parts: list[Weighted] = [(Reward(auxiliary, biased, self.clip, kept), weights)]
        if self.pull:
            from_data = asked.clone()
            from_data[: rows.own] = False
            towards = answer(self.teacher.net, self.teacher.spec, rows.z_a, rows.t, rows.h)
            parts.append((Divergence(towards), self.free(from_data).double() * self.pull))
        return together(parts)

    def measured(self) -> dict[str, Tensor]:
        """Of the last batch: the auxiliary's loss, the mean reward, and the entropy of g in nats where it is asked."""
        (loss, entropy), asked = self.found["kept"], self.found["asked"]
        spread = (entropy * asked).sum() / asked.sum().clamp(min=1)
        return {"aux": self.found["aux"], "gap": (loss * self.found["weights"]).mean(), "entropy": spread}


def together(parts: list[Weighted]) -> Weighted:
    """One objective of several, and its weights."""
    return parts[0] if len(parts) == 1 else (Together(parts), torch.ones_like(parts[0][1]))
