"""Duo: uniform-state diffusion by its time reversal, with a Gaussian curriculum; Sahoo et al. 2025 (2506.10892).

The network predicts π(y) = p(x_1 = y | the other positions) at every position (`flow.logits`, others) and is told σ =
−log κ. It may also predict p(x_1 | x_t), from which π follows by Bayes (`predicts`; this is ours): then a token that
is shown need not be hidden from its own prediction, but how sure of it to be at each time has to be learned. With q(y)
= κ1{y = x_1} + (1−κ)/K, q̂ the same with π in place of x_1, and z = x_t, the bound of the reversed noising is

    NELBO = ∫ κ̇/(κK) · E[ Σ_{y≠z} r̂_y − r_y + r_y log(r_y/r̂_y) ] dt,      r_y = q(y)/q(z),   r̂_y = q̂(y)/q̂(z)

(`kernels.reversal`). It is a bound of another process than the flow's, where tokens only ever move towards x_1: the two
are not comparable. With the true π it is −log p(x_1) itself.

In the first part of the training the state is the argmax of Gaussian noise w, and the network is shown softmax(w/τ) as
a law over tokens (`flow.gaussian`). There γ falls evenly with the time u, so κ̇ dt becomes (dκ/du) du.

It writes by the exact step of the reversed process (`flow.psi`):

    duo-ancestral   the exact step; the last one draws from p(x_1 | x_t)
    duo-greedy      the same, and one pass more in which every position takes π's likeliest token: N + 1 passes
    duo-psi:κ       Ψ: κ of the exact step and 1 − κ of p(x_1 | x_t) noised again
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tsdfm.errors import UserError
from tsdfm.methods import JumpMaker, TextMethod
from tsdfm.settings import Settings, option
from tsdfm.teacher.settings import TeacherSettings

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from tsdfm.flow import Bound, Noise, RowNoise, Schedule, Source
    from tsdfm.flow.gaussian import GaussianClock
    from tsdfm.flow.psi import PsiJump
    from tsdfm.nn.velocity import VelocitySpec
    from tsdfm.teacher.task import SoftStates

FIRST, LAST = 1e-5, 1 - 1e-5  # κ is held between them, where weight and rates are finite
CLEAN, NOISY = 0.95, 0.05  # κ at the ends of the curriculum: γ from −3.57 to −1.86 with GPT-2's tokens


@dataclass(frozen=True, kw_only=True)
class CurriculumSettings(Settings):
    """The Gaussian curriculum: the network is shown tempered Gaussian noise instead of its argmax."""

    steps: int | None = option(None, "steps of the curriculum, 0 for none; none is the first half of loop.steps", low=0)
    tau: float = option(
        1e-3, "τ: temperature of the law that is shown; its limit 0 is the plain state, steps 0", above=0
    )
    tau_end: float | None = option(None, "τ at the end, reached in a straight line of log τ; none is tau", above=0)
    gamma_min: float | None = option(None, f"γ of the cleanest states; none is where κ = {CLEAN}", low=-100, high=100)
    gamma_max: float | None = option(None, f"γ of the noisiest states; none is where κ = {NOISY}", low=-100, high=100)
    top: int = option(
        16, "tokens of a position's noise that are shown one by one, the largest; the rest by its mean", low=1
    )


@dataclass(frozen=True, kw_only=True)
class DuoSettings(TeacherSettings):
    """Duo pre-training: a network that predicts each token from the others, by the bound of the reversed noising."""

    source: Literal["uniform"] = option("uniform", "what x_0 is: random tokens")
    predicts: Literal["others", "posterior"] = option(
        "others", "others: x_1 from the other positions, as published; posterior (ours): from all of x_t"
    )
    curriculum: CurriculumSettings = option(CurriculumSettings(), "the Gaussian curriculum")


def clock_of(vocab: int, low: float | None, high: float | None, clean: float, noisy: float) -> GaussianClock:
    """Times of Gaussian noise from γ = `high` to `low`; one that is none is where κ is `noisy` or `clean`."""
    from tsdfm.flow.gaussian import GaussianClock, gamma_of

    ends = (gamma_of(clean, vocab) if low is None else low, gamma_of(noisy, vocab) if high is None else high)
    return GaussianClock(vocab, *ends)


@dataclass(frozen=True)
class Curriculum:
    """The states of the first `steps` steps."""

    settings: CurriculumSettings
    clock: GaussianClock
    steps: int

    def tau(self, step: int) -> float:
        """τ at a step of the training, from `tau` to `tau_end` in a straight line of log τ."""
        first = math.log(self.settings.tau)
        last = first if self.settings.tau_end is None else math.log(self.settings.tau_end)
        return math.exp(first + (last - first) * step / max(1, self.steps - 1))


@dataclass(frozen=True)
class DuoLoss:
    """The NELBO's rate with its weight κ̇/(κK); the mean is over all positions."""

    schedule: Schedule
    source: Source
    posterior: bool = False
    curriculum: Curriculum | None = None
    slope: Tensor | None = field(default=None, repr=False)  # dκ/du [B] of states with times of their own

    def times(self, rows: Tensor, seed: int) -> Tensor:
        from tsdfm.flow import row_times

        return row_times(rows, seed)

    def parts(self, t: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """c = κK/(1−κ) [B, L] as `like` has positions, and the weights κ̇/(κK) [B, 1], float64, of times t [B]."""
        kappa = self.schedule.kappa(t).clamp(FIRST, LAST)
        slope = self.schedule.derivative(self.schedule.inverse(kappa)) if self.slope is None else self.slope
        odds = (kappa * self.source.vocab / (1 - kappa))[:, None].expand_as(like)
        return odds, (slope / (kappa * self.source.vocab))[:, None]

    def plain(self, logits: Tensor, x_1: Tensor, x_t: Tensor, t: Tensor) -> Tensor:
        from tsdfm.kernels.reversal import reversal_loss

        odds, weight = self.parts(t, x_1)
        loss = reversal_loss(logits, x_1, x_t, odds, posterior=self.posterior)
        return (weight.to(loss.dtype) * loss).mean()

    def fused(self, x_1: Tensor, x_t: Tensor, t: Tensor) -> tuple[Any, Tensor]:
        from tsdfm.kernels.reversal import Reversal

        odds, weight = self.parts(t, x_1)
        return Reversal(x_1.flatten(), x_t.flatten(), odds.flatten(), self.posterior), weight

    def states(self, x_1: Tensor, t: Tensor, noise: RowNoise, step: int) -> SoftStates | None:
        """Gaussian states at times t [B] of the curriculum's own clock, while it lasts (`teacher.task.Softens`)."""
        from tsdfm.flow.gaussian import soft_state
        from tsdfm.teacher.task import SoftStates

        about = self.curriculum
        if about is None or step >= about.steps:
            return None
        ratio, kappa, slope = about.clock.at(t)
        made = soft_state(x_1, ratio, about.tau(step), self.source.vocab, about.settings.top, noise)
        return SoftStates(replace(self, slope=slope), made.x_t, self.schedule.inverse(kappa), *made[1:])


def nelbo_rows(
    model: Any, x_1: Tensor, schedule: Schedule, source: Source, times: int, noise: Noise, **given: Any
) -> Tensor:
    """The NELBO for each row, nats per token [B], by a model that gives π; what is given is as `elbo_rows` has it.

    v is κ: the NELBO grows by E[Σ_{y≠z} …]/(κK) dκ.
    """
    from tsdfm.flow.elbo import stratified_rows
    from tsdfm.kernels.reversal import reversal_value

    rates = DuoLoss(schedule, source)
    return stratified_rows(
        model,
        x_1,
        schedule,
        source,
        times,
        noise,
        time=schedule.inverse,
        loss=lambda logits, x_t, t: reversal_value(logits, x_1, x_t, rates.parts(t, x_1)[0]),
        over=lambda kappa: kappa * source.vocab,
        span=(FIRST, LAST),
        **given,
    )


def ancestral(schedule: Schedule, source: Source) -> PsiJump:
    """The exact step."""
    from tsdfm.flow.psi import PsiJump, Steady

    return PsiJump(schedule, source, Steady(schedule))


def greedy(schedule: Schedule, source: Source) -> PsiJump:
    """The exact step, and a greedy tail."""
    from tsdfm.flow.psi import GreedyTail, Steady

    return GreedyTail(schedule, source, Steady(schedule))


def psi(schedule: Schedule, source: Source, kappa: float = 0.95) -> PsiJump:
    """Ψ with κ of the exact step."""
    from tsdfm.flow.psi import PsiJump, Steady

    if not 0 <= kappa <= 1:
        raise UserError(f"duo-psi takes a κ from 0 to 1, such as duo-psi:0.9, not {kappa:g}")
    return PsiJump(schedule, source, Steady(schedule, 1.0 - kappa))


class Duo(TextMethod):
    """The diffusion duality."""

    name, title = "duo", "Duo"
    help = "uniform-state diffusion by its time reversal, with a Gaussian curriculum"
    settings: ClassVar[type] = DuoSettings
    sources = ("uniform",)
    clock, logits, jump = "sigma", "others", "duo-ancestral"

    def words(self, settings: DuoSettings | None = None) -> dict[str, Any]:
        plain = settings is not None and settings.predicts == "posterior"
        return {**super().words(settings), "logits": "plain" if plain else self.logits}

    def loss(self, settings: DuoSettings, spec: VelocitySpec) -> DuoLoss:
        about, flow = settings.curriculum, (spec.flow_schedule(), spec.flow_source(), spec.logits == "plain")
        steps = settings.loop.steps // 2 if about.steps is None else about.steps
        if steps == 0:
            return DuoLoss(*flow)
        clock = clock_of(spec.vocab, about.gamma_min, about.gamma_max, CLEAN, NOISY)
        return DuoLoss(*flow, Curriculum(about, clock, steps))

    def bound(self) -> Bound:
        """The NELBO of the reversed noising."""
        from tsdfm.flow.elbo import Bound

        return Bound("Duo NELBO", nelbo_rows, "others")

    def jumps(self) -> dict[str, JumpMaker]:
        return {"duo-ancestral": ancestral, "duo-greedy": greedy, "duo-psi": psi}

    def then(self, settings: DuoSettings) -> tuple[str | Path, ...]:
        place = settings.out.parent / "duo-dcd"
        return ("train", "duo-dcd", "--tokens", settings.tokens, "--init-from", settings.out, "--out", place)


METHOD = Duo()
