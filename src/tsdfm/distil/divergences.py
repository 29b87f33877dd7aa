"""How far a student's law q is from its target p, position by position, by a name.

    reverse   KL(q ‖ p)                 forward   KL(p ‖ q)
    mse       Σ_v (q_v − p_v)²          tvd       ½ Σ_v |q_v − p_v|

mse and tvd can also be taken on log-probabilities, as their mean over the vocabulary: there they count rare tokens as
much as likely ones. The two KLs run by kernels (`kernels.rows`); mse and tvd are plain torch, chunk by chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from tsdfm.kernels.fused import Divergence, Objective, Target
from tsdfm.kernels.rows import Graded

DivergenceName = Literal["reverse", "forward", "mse", "tvd"]


@dataclass(frozen=True)
class Distance:
    """mse or tvd of a student and a `Target`, on probabilities or, with `logs`, on log-probabilities."""

    target: Target
    squared: bool
    logs: bool = False

    def __call__(self, logits: Tensor, part: slice, gradient: bool) -> Graded:
        return distance(logits, self.target.log_p(part), squared=self.squared, logs=self.logs, gradient=gradient)


def distance(logits: Tensor, log_p: Tensor, *, squared: bool, logs: bool, gradient: bool) -> Graded:
    """mse, where `squared`, or tvd [n] of logits of q and log p [n, V], and the gradient by the logits.

    With g = ∂/∂q or, of logs, ∂/∂log q:   ∂/∂l = q · (g − Σ_v q_v g_v)   or   g − q · Σ_v g_v
    """
    log_q = logits.log_softmax(-1)
    q = log_q.exp()
    gap = log_q - log_p if logs else q - log_p.exp()
    share = 1.0 / gap.shape[-1] if logs else 1.0 if squared else 0.5
    loss = share * (gap.square() if squared else gap.abs()).sum(-1)
    if not gradient:
        return loss, None
    g = share * (2.0 * gap if squared else gap.sign())
    if logs:
        return loss, g - q * g.sum(-1, keepdim=True)
    return loss, q * (g - (q * g).sum(-1, keepdim=True))


def divergence_from(name: DivergenceName, target: Target, *, logs: bool = False) -> Objective:
    """A divergence from `target` by its name; `logs` is for mse and tvd."""
    if name in ("reverse", "forward"):
        return Divergence(target, name == "reverse")
    return Distance(target, name == "mse", logs)
