"""Jumps: how a state moves from t to t + h, given the model's p(x_1 | x_t).

A jump is whatever `solve` can call (`Jump`). The two of the paper are one sentence with another number in it: *a
position leaves its token z with probability `leave` and goes to a token drawn from p with z taken out* (`LeaveJump`).
So they need p(z) and one draw that is not z, and no [B, L, V] generator.

    EulerJump        leave = (1 − e^{−hλ(t)})·(1 − p(z)),      λ = κ̇/(1 − κ)
    CumulativeJump   leave = 1 − [(1 − κ(t+h))/(1 − κ(t))]^{1 − p(z)}

Euler freezes the rate at t: it draws x̂_1 ~ p and jumps, if x̂_1 ≠ z, with the chance that a clock of rate λ(t) rings
within h. The cumulative jump integrates the rate over the step, exactly for a p that does not change, and so may take
large steps.

A step that ends at t + h = 1 draws x_1 from p outright: leave = 1 − p(z). With the mask source it touches only the
positions that are still [MASK], which all leave. It keeps the two uniforms of every other step, one for leaving and one
for where to, though one would do for a draw from p: what is drawn by one is another token, and a seed keeps its text.
The work is the same, one read of the logits.

Whether a position leaves is decided by its first uniform, and `leave` grows with 1 − p(z): where that uniform is not
below `leave` at p(z) = 0, the position stays whatever the logits say, and nobody needs them (`needs`). In a step of
1/1024 that is nearly everywhere; in eight steps, two thirds of all positions; in the last step of the mask source,
all but the masks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from tsdfm.errors import UserError
from tsdfm.flow.draw import draw_other
from tsdfm.flow.logits import Reads
from tsdfm.flow.noise import Noise, uniform
from tsdfm.flow.schedule import Schedule
from tsdfm.flow.source import Source
from tsdfm.lazy import BROUGHT
from tsdfm.settings import nearest

Steps = tuple[tuple[float, float], ...]
"""Steps of a walk, each from t to t + h."""

TINY = 1e-15
"""The least probability whose logarithm is taken."""


@runtime_checkable
class Jump(Protocol):
    """One step of a solver: (x_t [B, L], logits [B, L, V], t [B], h [B], noise) → x_{t+h} [B, L].

    A jump with `final_pass` asks for one pass of the network more, at t = 1, and finishes the text by it:
    `finish(x [B, L], logits [B, L, V], noise) → x_1 [B, L]`. The solver counts that pass.
    """

    @property
    def schedule(self) -> Schedule: ...

    @property
    def source(self) -> Source: ...

    @property
    def final_pass(self) -> bool: ...

    def __call__(self, x_t: Tensor, logits: Tensor, t: Tensor, h: Tensor, noise: Noise) -> Tensor: ...


@runtime_checkable
class Finishes(Protocol):
    """A jump that has a last word, by a pass of its own."""

    def finish(self, x: Tensor, logits: Tensor, noise: Noise) -> Tensor: ...


def reads_of(jump: Jump | PositionJump) -> Reads:
    """What a jump wants of a model (`flow.logits`): the posterior p(x_1 | x_t), unless its `reads` says otherwise."""
    reads: Reads = getattr(jump, "reads", "posterior")
    return reads


@runtime_checkable
class Remembers(Protocol):
    """A jump that keeps something of each row over its steps: `begin(x_0 [B, L])` makes the one for these rows."""

    def begin(self, x_0: Tensor) -> Jump: ...


@functools.cache
def remembers(kind: type[Jump]) -> bool:
    """Does a kind of jump remember? Asked for every row, and slow to find out."""
    return issubclass(kind, Remembers)


@functools.cache
def stops(kind: type[Jump]) -> bool:
    """May a kind of jump stop early? Asked as often."""
    return issubclass(kind, Stops)


@runtime_checkable
class Retimes(Protocol):
    """A jump along which the share of arrived tokens may differ from κ(t): the network is told `when` [B], not t."""

    def when(self, t: Tensor, h: Tensor) -> Tensor: ...


@runtime_checkable
class Paced(Protocol):
    """A jump whose steps are not all of one size: `steps_in(k)` are k steps, each from one time to a later one.

    The first begins at 0 and the last ends at 1. A step need not begin where the one before it ended.
    """

    def steps_in(self, count: int) -> Steps: ...


@runtime_checkable
class PositionJump(Protocol):
    """A jump that decides position by position, by two uniforms u [B, L, 2] each.

    `needs` [B, L] says, before any logits are there, which positions they could make move; `move` is the jump by the
    logits of any positions. A solver whose model can give some logits without the others (`flow.walk.PartialModel`)
    then asks for those alone.
    """

    @property
    def schedule(self) -> Schedule: ...

    @property
    def source(self) -> Source: ...

    def needs(self, x_t: Tensor, t: Tensor, h: Tensor, u: Tensor) -> Tensor: ...

    def move(self, x_t: Tensor, logits: Tensor, t: Tensor, h: Tensor, u: Tensor) -> Tensor: ...


@runtime_checkable
class RowJump(Protocol):
    """A jump that reads positions one by one and then decides row by row: one that writes the surest tokens first, say.

    `needs` [B, L] are the positions whose logits it wants, by uniforms u [B, L, 2]. `read` gives a token and a score
    [N] of each of N positions, from the logits [N, V] as they are drawn from and the model's `own`, before temperature
    and top-p: how sure the model is does not depend on those. `settle` makes x_{t+h} [B, L] of all tokens and scores
    [B, L]; what was not read has its own token and the score 0.
    """

    @property
    def source(self) -> Source: ...

    def needs(self, x_t: Tensor, t: Tensor, h: Tensor, u: Tensor) -> Tensor: ...

    def read(self, logits: Tensor, own: Tensor, u: Tensor) -> tuple[Tensor, Tensor]: ...

    def settle(self, x_t: Tensor, tokens: Tensor, scores: Tensor, t: Tensor, h: Tensor, u: Tensor) -> Tensor: ...


@runtime_checkable
class Stops(Protocol):
    """A jump that may be finished before the last step: `done(x [B, L]) → [B]` says which rows are."""

    def done(self, x: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class LeaveJump:
    """A jump that leaves z with some chance, for a token drawn from p without z. A subclass gives `chance`, no more:
    kernels and navigation draw for themselves and ask `leave` alone. Row-wise arithmetic on tensors only: safe under
    `torch.compile`, no device is waited for.

    `keep_revealed` (mask source only) never moves a position that has left [MASK]. The true posterior has p(z) = 1
    there, so a perfect model does not notice; for a learned one it takes away the chance to revise a token, as MDLM
    does. `redraw_last` (mask source only) draws every position anew in the last step, as FS-DFM's public Euler solver
    does.
    """

    schedule: Schedule
    source: Source
    keep_revealed: bool = False
    redraw_last: bool = False
    final_pass: ClassVar[bool] = False
    row_wise: ClassVar[bool] = True
    """May rows at other times, with steps of other sizes, share a call? A jump that does not say so is called alone."""

    def chance(self, t: Tensor, s: Tensor, h: Tensor, p_other: Tensor) -> Tensor:
        """The probability of leaving before the last step; t, s = t + h, h are [B, 1], p_other = 1 − p(z) is [B, L].

        It never falls as p_other grows.
        """
        raise NotImplementedError

    def leave(self, x_t: Tensor, p_other: Tensor, t: Tensor, h: Tensor) -> Tensor:
        """The probability of leaving [B, L], float64, the last step included."""
        # t + h is added in the dtype it came in, where 1 − t was also computed: so it is 1 exactly when it should be
        s = (t + h).to(torch.float64).view(-1, 1)
        t, h = t.to(torch.float64).view(-1, 1), h.to(torch.float64).view(-1, 1)
        last, chance = p_other, self.chance(t, s, h, p_other)
        if self.source.mask is not None:
            masked = x_t == self.source.mask
            if not self.redraw_last:
                last = torch.where(masked, last, 0.0)
            if self.keep_revealed:
                chance = torch.where(masked, chance, 0.0)
        return torch.where(s >= 1.0, last, chance)

    def log_step(self, x_t: Tensor, y: Tensor, log_own: Tensor, log_y: Tensor, t: Tensor, h: Tensor) -> Tensor:
        """log q(y | x_t) [B, L] of a step that led from x_t to y, from log p of x_t's own tokens and of y's.

            log(1 − leave) where y = z,      log leave − log(1 − p(z)) + log p(y) elsewhere

        In float64, with gradients. At [MASK] p(z) is 0, whatever `log_own` says.
        """
        p_other = -torch.expm1(log_own.double())
        if self.source.mask is not None:
            p_other = torch.where(x_t == self.source.mask, 1.0, p_other)
        p_other = p_other.clamp(TINY, 1.0)
        leave = self.leave(x_t, p_other, t, h)
        stays = torch.log1p(-leave.clamp(max=1.0 - TINY))
        goes = leave.clamp(min=TINY).log() - p_other.log() + log_y.double()
        return torch.where(y == x_t, stays, goes)

    def needs(self, x_t: Tensor, t: Tensor, h: Tensor, u: Tensor) -> Tensor:
        """The positions [B, L] that could leave for some logits, by uniforms u [B, L, 2]: no other one moves."""
        return u[..., 0] < self.leave(x_t, torch.ones_like(x_t, dtype=torch.float64), t, h)

    def move(self, x_t: Tensor, logits: Tensor, t: Tensor, h: Tensor, u: Tensor) -> Tensor:
        """The jump by uniforms u [B, L, 2] (does it leave, and where to): a pure function, the part to compile."""
        if logits.shape[-1] != self.source.vocab:
            raise UserError(
                f"the model gives {logits.shape[-1]} columns, the vocabulary has {self.source.vocab} tokens"
            )
        other = draw_other(logits, x_t, u[..., 1])
        return torch.where(u[..., 0] < self.leave(x_t, other.p_other, t, h), other.tokens, x_t)

    def __call__(self, x_t: Tensor, logits: Tensor, t: Tensor, h: Tensor, noise: Noise) -> Tensor:
        return self.move(x_t, logits, t, h, uniform(noise, (*x_t.shape, 2), x_t.device))


@dataclass(frozen=True)
class EulerJump(LeaveJump):
    """The plain jump at the rate of time t, first order in h."""

    def chance(self, t: Tensor, s: Tensor, h: Tensor, p_other: Tensor) -> Tensor:
        clock = torch.where(h > 0, h * self.schedule.rate(t), 0.0)  # λ may be infinite at t = 0 (κ = tⁿ, n < 1)
        return -torch.expm1(-clock) * p_other


@dataclass(frozen=True)
class CumulativeJump(LeaveJump):
    """The cumulative-scalar jump of FS-DFM; with the mask source and `keep_revealed`, MDLM's ancestral step."""

    def chance(self, t: Tensor, s: Tensor, h: Tensor, p_other: Tensor) -> Tensor:
        log = torch.log(self.schedule.survival(t, s)).clamp(min=-745.0)  # as of the least number: −∞ has no gradient
        return -torch.expm1(p_other * log)


JUMPS: dict[str, Callable[[Schedule, Source], LeaveJump]] = {
    "euler": EulerJump,
    "cumulative": CumulativeJump,
    "ancestral": lambda schedule, source: CumulativeJump(schedule, source, keep_revealed=True),
    "euler-redraw": lambda schedule, source: EulerJump(schedule, source, redraw_last=True),
}
"""The jumps every model can take; a method may bring others (`tsdfm.methods`)."""


def jump_from(name: str, schedule: Schedule, source: Source) -> Jump:
    """A jump by its name: one of `JUMPS`, or one that a method brings. `ancestral` needs the mask source.

    A jump that has dials, such as ReMDM's η, takes them after colons: `remdm-cap:0.1`, `late:2:1`.
    """
    word, *dials = name.split(":")
    if word in JUMPS and not dials:
        if word in ("ancestral", "euler-redraw") and source.mask is None:
            raise UserError(f"jump {word} differs in what has left [MASK]: it needs a model of the mask source")
        return JUMPS[word](schedule, source)
    brought = BROUGHT["jumps"]()
    if word not in brought:
        raise UserError(f"unknown jump {name!r}{nearest(name, ('auto', *JUMPS, *brought))}")
    try:
        made: Jump = brought[word](schedule, source, *map(float, dials))
    except (TypeError, ValueError):
        raise UserError(f"jump {word} takes no such dial as {':'.join(dials)!r}") from None
    return made
