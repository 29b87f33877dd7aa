"""DFM: discrete flow matching, the many-step teacher.

    t ~ U(0, 1)^time_power,   x_0 ~ source,   x_t between x_0 and x_1,   minimise −log p(x_1 | x_t, t) everywhere,

or the generalised KL κ̇/(1−κ)·[1{x_1≠x_t}(−log p(x_1) − p(x_t)) + 1{x_1=x_t}(1 − p(x_t))]. It writes by Euler's jump.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tsdfm.methods import TextMethod
from tsdfm.settings import option
from tsdfm.teacher.settings import TeacherSettings

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from tsdfm.flow import Schedule, Source
    from tsdfm.nn.velocity import VelocitySpec


@dataclass(frozen=True, kw_only=True)
class DFMSettings(TeacherSettings):
    """DFM pre-training: a velocity network that predicts the text from any state on the way to it."""

    loss: Literal["cross-entropy", "generalised-kl"] = option("cross-entropy", "what is minimised")
    time_power: float = option(
        1.0, "times are drawn as u^time_power; below 1 shows later, cleaner states more often", above=0
    )


@dataclass(frozen=True)
class DFMLoss:
    """Cross-entropy, or the generalised KL with its weight κ̇/(1−κ)."""

    settings: DFMSettings
    schedule: Schedule
    source: Source

    def times(self, rows: Tensor, seed: int) -> Tensor:
        from tsdfm.flow import row_times

        return row_times(rows, seed) ** self.settings.time_power

    def plain(self, logits: Tensor, x_1: Tensor, x_t: Tensor, t: Tensor) -> Tensor:
        from tsdfm.flow import cross_entropy, generalised_kl

        if self.settings.loss == "cross-entropy":
            return cross_entropy(logits, x_1)
        return generalised_kl(logits, x_1, x_t, t, self.schedule, self.source)

    def fused(self, x_1: Tensor, x_t: Tensor, t: Tensor) -> tuple[Any, Tensor]:
        from tsdfm.flow.loss import LAST_TIME
        from tsdfm.kernels.fused import CrossEntropy, GeneralisedKL

        if self.settings.loss == "cross-entropy":
            return CrossEntropy(x_1.flatten()), (t * 0 + 1)[:, None]
        return GeneralisedKL(x_1.flatten(), x_t.flatten()), self.schedule.rate(t.clamp(max=LAST_TIME))[:, None]


class DFM(TextMethod):
    """Discrete flow matching."""

    name, title, label = "dfm", "DFM", "teacher"
    help = "discrete flow matching: the many-step teacher"
    settings: ClassVar[type] = DFMSettings

    def then(self, settings: DFMSettings) -> tuple[str | Path, ...]:
        place = settings.out.parent / "fs-dfm"
        return ("student", "--tokens", settings.tokens, "--init-from", settings.out, "--out", place)

    def loss(self, settings: DFMSettings, spec: VelocitySpec) -> DFMLoss:
        return DFMLoss(settings, spec.flow_schedule(), spec.flow_source())


METHOD = DFM()
