"""MDLM: masked diffusion with the SUBS parametrisation, Sahoo et al. 2024 (2406.07524).

The network predicts x_1 at the positions that are [MASK] and is not told the time. A revealed position is x_1 already:
p(x_1 = x_t | x_t) = 1 (`flow.logits`, subs), so it carries no loss and never moves. In our time, where κ(t) is the
share of the text that is there, the negative evidence bound is

    NELBO = ∫ κ̇/(1−κ) · E[ Σ_i 1{x_t[i] = [MASK]} · (−log p(x_1[i] | x_t)) ] dt,

which is the generalised KL of such a model, term by term. It writes by the ancestral step: from t to s a [MASK] is
revealed with probability (κ(s) − κ(t))/(1 − κ(t)), as a draw from p.

`ancestral-denoise` adds the paper's noise removal: the last step stops at t = 1 − 10⁻⁵, and one pass more, which is
counted, fills what is still [MASK] with the likeliest token. It does next to nothing: of L tokens some L·10⁻⁵ are left
to it, and SUBS keeps all others. Texts longer than the model are written in windows (`samples.windows`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tsdfm.methods import JumpMaker, TextMethod
from tsdfm.settings import option
from tsdfm.teacher.settings import TeacherSettings

if TYPE_CHECKING:
    from torch import Tensor

    from tsdfm.flow import Bound, Jump, Noise, Schedule, Source
    from tsdfm.nn.velocity import VelocitySpec


@dataclass(frozen=True, kw_only=True)
class MDLMSettings(TeacherSettings):
    """MDLM pre-training: a network that fills in masked tokens, by the bound of its likelihood."""

    source: Literal["mask"] = option("mask", "what x_0 is: [MASK] everywhere")


@dataclass(frozen=True)
class MDLMLoss:
    """−log p(x_1) at masked positions, weighted by κ̇/(1−κ); the mean is over all positions."""

    schedule: Schedule
    source: Source

    def times(self, rows: Tensor, seed: int) -> Tensor:
        """Low-discrepancy times: as even over a batch as antithetic ones, on any number of processes."""
        from tsdfm.flow import row_times

        return row_times(rows, seed)

    def weight(self, x_t: Tensor, t: Tensor) -> Tensor:
        """κ̇/(1−κ) where x_t [B, L] is [MASK], 0 elsewhere."""
        from tsdfm.flow.loss import LAST_TIME

        return self.schedule.rate(t.double().clamp(max=LAST_TIME))[:, None] * (x_t == self.source.mask)

    def plain(self, logits: Tensor, x_1: Tensor, x_t: Tensor, t: Tensor) -> Tensor:
        from tsdfm.flow import cross_entropy

        loss = cross_entropy(logits, x_1, reduction="none")
        return (self.weight(x_t, t).to(loss.dtype) * loss).mean()

    def fused(self, x_1: Tensor, x_t: Tensor, t: Tensor) -> tuple[Any, Tensor]:
        from tsdfm.kernels.fused import CrossEntropy

        return CrossEntropy(x_1.flatten()), self.weight(x_t, t)


@dataclass(frozen=True)
class DenoiseJump:
    """The ancestral step up to t = 1 − 10⁻⁵, then a last pass for what is left."""

    schedule: Schedule
    source: Source
    final_pass: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.ancestral()

    def ancestral(self) -> Jump:
        """The step without noise removal; it refuses a source without masks."""
        from tsdfm.flow import jump_from

        return jump_from("ancestral", self.schedule, self.source)

    def __call__(self, x_t: Tensor, logits: Tensor, t: Tensor, h: Tensor, noise: Noise) -> Tensor:
        from tsdfm.flow.loss import LAST_TIME

        return self.ancestral()(x_t, logits, t, (t + h).clamp(max=LAST_TIME) - t, noise)

    def finish(self, x: Tensor, logits: Tensor, noise: Noise) -> Tensor:
        """The likeliest token where x [B, L] is [MASK], by logits [B, L, V] at t = 1."""
        import torch

        return torch.where(x >= self.source.vocab, logits.argmax(-1), x)


class MDLM(TextMethod):
    """Masked diffusion language model."""

    name, title = "mdlm", "MDLM"
    help = "masked diffusion with SUBS and no time conditioning"
    settings: ClassVar[type] = MDLMSettings
    sources = ("mask",)
    time, logits, jump = False, "subs", "ancestral"

    def loss(self, settings: MDLMSettings, spec: VelocitySpec) -> MDLMLoss:
        return MDLMLoss(spec.flow_schedule(), spec.flow_source())

    def jumps(self) -> dict[str, JumpMaker]:
        return {"ancestral-denoise": DenoiseJump}

    def bound(self) -> Bound:
        """The NELBO: `elbo_rows` of logits with SUBS, where what has arrived adds nothing."""
        from tsdfm.flow.elbo import Bound, elbo_rows

        return Bound("NELBO", elbo_rows)


METHOD = MDLM()
