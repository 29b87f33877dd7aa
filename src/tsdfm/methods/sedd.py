"""SEDD: score entropy discrete diffusion, Lou et al. 2024 (2310.16834).

The network is told σ = −log κ and answers with the score s_y = q_t(y)/q_t(x_t): how much likelier the state would be
with y in this place. With r = κ/(1−κ), K = |V| and ratios ρ_y of the law given x_1, the loss of a position is

    w(t)·Σ_{y≠x_t} [ s_y − ρ_y log s_y + ρ_y(log ρ_y − 1) ]

    mask       at [MASK] alone: ρ = r·1{y=x_1}, w = κ̇/κ.      Written with s = r·e^n it is κ̇/(1−κ)·[Σe^n − 1 − n(x_1)]:
               MDLM's cross-entropy plus Z − 1 − log Z for the sum Z = Σe^n, which a score is free to miss
    uniform    ρ = 1/(1 + K r) where x_t = x_1; elsewhere 1 + K r at y = x_1 and 1 at other tokens; w = κ̇/(κK)

Its integral over t, and with the uniform source the divergence of the noise at t = 10⁻³ from even, bounds −log p(text)
(DWDSE); it is −log p(text) where the score is true. `scale` («scale by σ», mask source alone) lets the network answer
n + log K, so that it need not learn the factor r. SEDD's log-linear noise is κ = t; that of the uniform source is
geometric.

From t to s = t + h, with e^{Δσ} = κ(s)/κ(t), the state becomes y with probability

    sedd-euler      mask: h κ̇/(1−κ)·Z p_y                  uniform: h κ̇/κ·s_y/K
    sedd-analytic   mask: (κ(s)−κ(t))/(1−κ(t))·Z p_y       uniform: [e^{Δσ}s_y − (e^{Δσ}−1)·mean(s)]·(1 − e^{−Δσ})/K

and else stays (Tweedie τ-leaping, what comes out negative is 0). The two are the same for masks and κ = t. A step that
ends at t = 1 is the analytic one and leaves no mask: SEDD's denoising, which its public code spends one more pass on.
Temperature and top-p shape p(x_1 | x_t), as with every jump; Z stays (`flow.solver`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tsdfm.errors import UserError
from tsdfm.methods import JumpMaker, TextMethod
from tsdfm.settings import option
from tsdfm.teacher.settings import TeacherSettings

if TYPE_CHECKING:
    from torch import Tensor

    from tsdfm.flow import Bound, Noise, Schedule, Source
    from tsdfm.kernels.rows import Ratios
    from tsdfm.nn.velocity import VelocitySpec

NOISE = {"mask": "poly:1", "uniform": "geometric"}


@dataclass(frozen=True, kw_only=True)
class SEDDSettings(TeacherSettings):
    """SEDD pre-training: a network that learns ratios of probabilities, by score entropy."""

    source: Literal["uniform", "mask"] = option("mask", "what x_0 is: random tokens, or [MASK] everywhere")
    schedule: str = option("auto", "κ(t): auto is poly:1 for mask, geometric for uniform; poly:N is t^N, or cosine")
    scale: bool | None = option(None, "multiply answers by κ/(1−κ)/|V|: none is yes for mask, which alone can")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale and self.source != "mask":
            raise UserError("scale multiplies by the odds of [MASK]: the uniform source has none, leave it out")
        object.__setattr__(self, "scale", self.source == "mask" if self.scale is None else self.scale)
        object.__setattr__(self, "schedule", NOISE[self.source] if self.schedule == "auto" else self.schedule)


def ratios(
    x_1: Tensor, x_t: Tensor, t: Tensor, schedule: Schedule, source: Source, scaled: bool
) -> tuple[Ratios, Tensor]:
    """What answers are measured against at positions x_1, x_t [B, L] and times t [B], flat, and weights [B, L]."""
    import math

    import torch

    from tsdfm.flow.logits import FIRST_TIME, log_odds
    from tsdfm.flow.loss import LAST_TIME
    from tsdfm.kernels.rows import Ratios

    odds = log_odds(schedule, t)[:, None].expand(x_t.shape)
    zero = torch.zeros_like(odds)
    if source.mask is not None:
        shift = zero + math.log(source.vocab) if scaled else odds
        rate = schedule.rate(t.double().clamp(max=LAST_TIME))[:, None]
        to = Ratios(*(x.flatten() for x in (x_1, x_t, shift, zero, zero + 1)))
        return to, rate * (x_t == source.mask)
    high, there = 1 + source.vocab * odds.exp(), x_1 == x_t
    held = t.double().clamp(FIRST_TIME, LAST_TIME)
    rate = schedule.derivative(held) / (schedule.kappa(held) * source.vocab)
    to = Ratios(*(x.flatten() for x in (x_1, x_t, zero, torch.where(there, 1 / high, 1.0), high)))
    return to, rate[:, None].expand(x_t.shape)


@dataclass(frozen=True)
class SEDDLoss:
    """The score entropy; the mean is over all positions."""

    schedule: Schedule
    source: Source
    scaled: bool

    def times(self, rows: Tensor, seed: int) -> Tensor:
        from tsdfm.flow import row_times
        from tsdfm.flow.logits import FIRST_TIME

        return row_times(rows, seed).clamp(min=0.0 if self.source.mask is not None else FIRST_TIME)

    def plain(self, logits: Tensor, x_1: Tensor, x_t: Tensor, t: Tensor) -> Tensor:
        from tsdfm.kernels.inverse import floats
        from tsdfm.kernels.rows import plain_scores

        to, weight = ratios(x_1, x_t, t, self.schedule, self.source, self.scaled)
        loss, _ = plain_scores(floats(logits).flatten(0, 1), to, gradient=False)
        return (weight.to(loss.dtype) * loss.view(x_1.shape)).mean()

    def fused(self, x_1: Tensor, x_t: Tensor, t: Tensor) -> tuple[Any, Tensor]:
        from tsdfm.kernels.fused import ScoreEntropy

        to, weight = ratios(x_1, x_t, t, self.schedule, self.source, self.scaled)
        return ScoreEntropy(to), weight


def bound_rows(
    model: Any, x_1: Tensor, schedule: Schedule, source: Source, times: int, noise: Noise, **given: Any
) -> Tensor:
    """DWDSE of each row, nats per token [B], as `flow.elbo_rows` has it; the model gives log s, and t is stratified."""
    import math

    import torch

    from tsdfm.flow.elbo import stratified_rows
    from tsdfm.flow.logits import FIRST_TIME
    from tsdfm.flow.loss import LAST_TIME
    from tsdfm.kernels import rows

    def loss(score: Tensor, x_t: Tensor, t: Tensor) -> Tensor:
        to, weight = ratios(x_1, x_t, t, schedule, source, scaled=False)
        flat = rows.scores(score.flatten(0, 1), to, to.shift, source.vocab, gradient=False)
        return weight * flat.view(x_1.shape)

    first = 0.0 if source.mask is not None else FIRST_TIME
    given |= {"time": lambda v: v, "loss": loss, "over": torch.ones_like, "span": (first, LAST_TIME)}
    found = stratified_rows(model, x_1, schedule, source, times, noise, **given)
    if source.mask is not None:
        return found
    kappa, left = float(schedule.kappa(first)), float(schedule.remaining(first))
    at = kappa + left / source.vocab  # the noise at `first`: x_1 with this chance, every other token with left/K
    return found + at * math.log(at * source.vocab) + (1 - at) * math.log(left)


@dataclass(frozen=True)
class ScoreJump:
    """A step by the score; `kind` is euler or analytic. Positions are independent of each other: two uniforms each."""

    schedule: Schedule
    source: Source
    kind: str
    final_pass: ClassVar[bool] = False
    reads: ClassVar[str] = "score"

    def needs(self, x_t: Tensor, t: Tensor, h: Tensor, u: Tensor) -> Tensor:
        """The positions [B, L] that may move: what is [MASK], or all."""
        import torch

        return torch.ones_like(x_t, dtype=torch.bool) if self.source.mask is None else x_t >= self.source.vocab

    def move(self, x_t: Tensor, logits: Tensor, t: Tensor, h: Tensor, u: Tensor) -> Tensor:
        """The step by log s [B, L, V] and uniforms u [B, L, 2]: does it leave, and where to."""
        import torch

        from tsdfm.flow import draw_other

        times = [x.double().view(-1, 1) for x in (t, t + h, h)]
        law = logits if self.source.mask is not None else self.law(x_t, logits, *times)
        other = draw_other(law, x_t, u[..., 1])
        leave = other.p_other if self.source.mask is None else self.reveal(x_t, logits, *times)
        return torch.where(u[..., 0] < leave, other.tokens, x_t)

    def reveal(self, x_t: Tensor, score: Tensor, t: Tensor, s: Tensor, h: Tensor) -> Tensor:
        """The chance [B, L] that [MASK] is left: Z·(1 − survival), or Z·hλ. It is 1 in the last step."""
        import torch

        from tsdfm.flow.logits import log_odds

        share = 1 - self.schedule.survival(t, s) if self.kind == "analytic" else h * self.schedule.rate(t)
        total = torch.exp(score.double().logsumexp(-1) - log_odds(self.schedule, t))
        masked = x_t >= self.source.vocab
        return torch.where(masked, torch.where(s >= 1.0, 1.0, share * total), 0.0)

    def law(self, x_t: Tensor, score: Tensor, t: Tensor, s: Tensor, h: Tensor) -> Tensor:
        """log P(y) [B, L, V] of the uniform source, x_t itself among the y; what would be negative is −inf."""
        import torch

        from tsdfm.flow.logits import FIRST_TIME
        from tsdfm.kernels.inverse import floats

        vocab, own = self.source.vocab, x_t.unsqueeze(-1)
        t, s = t.clamp(min=FIRST_TIME), s.clamp(min=FIRST_TIME)
        kappa = self.schedule.kappa(t)
        ratio = floats(score).scatter(-1, own, 0.0).exp()  # s_y, and 1 for x_t itself
        keep = (kappa / self.schedule.kappa(s)).unsqueeze(-1)  # e^{−Δσ}
        even = (ratio - ((1 - keep) * ratio.double().mean(-1, keepdim=True)).to(ratio.dtype)).clamp(min=0.0)
        stay = even.gather(-1, own) * (1 + vocab * keep / (1 - keep).clamp(min=1e-12)).to(ratio.dtype)
        analytic = even.scatter(-1, own, stay.to(ratio.dtype))  # all of it over e^{−Δσ}·(1 − e^{−Δσ})/K alike
        if self.kind == "analytic":
            return analytic.log()
        step = (h * self.schedule.derivative(t) / (kappa * vocab)).unsqueeze(-1)
        rest = (1 - step * (ratio.double().sum(-1, keepdim=True) - 1)).clamp(min=0.0)
        euler = (ratio * step.to(ratio.dtype)).scatter(-1, own, rest.to(ratio.dtype))
        return torch.where((s >= 1.0).unsqueeze(-1), analytic, euler).log()

    def __call__(self, x_t: Tensor, logits: Tensor, t: Tensor, h: Tensor, noise: Noise) -> Tensor:
        from tsdfm.flow import uniform

        return self.move(x_t, logits, t, h, uniform(noise, (*x_t.shape, 2), x_t.device))


class SEDD(TextMethod):
    """Score entropy discrete diffusion."""

    name, title = "sedd", "SEDD"
    help = "ratios of probabilities by score entropy, for masks or random tokens"
    settings: ClassVar[type] = SEDDSettings
    clock, logits, jump = "sigma", "scaled-score", "sedd-analytic"

    def words(self, settings: SEDDSettings | None = None) -> dict[str, Any]:
        scaled = settings is None or settings.scale
        return {**super().words(settings), "logits": "scaled-score" if scaled else "score"}

    def loss(self, settings: SEDDSettings, spec: VelocitySpec) -> SEDDLoss:
        return SEDDLoss(spec.flow_schedule(), spec.flow_source(), spec.logits == "scaled-score")

    def jumps(self) -> dict[str, JumpMaker]:
        return {f"sedd-{kind}": partial(ScoreJump, kind=kind) for kind in ("euler", "analytic")}

    def bound(self) -> Bound:
        from tsdfm.flow.elbo import Bound

        return Bound("SEDD DWDSE", bound_rows, reads="score")


METHOD = SEDD()
