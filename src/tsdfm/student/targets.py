"""The large-step target: what the semi-teacher, in steps half as large, would say of the whole step.

    rk4     k1 at (x_t, t), k2 at (mid1, t + h/2), k3 at (mid2, t + h/2), k4 at (mid3, t + h);   (k1 + 2k2 + 2k3 + k4)/6
    heun    k1 at (x_t, t), k2 at (mid1, t + h/2);                                               (k1 + k2)/2
    euler   k1 at (x_t, t)

Every stage sees the step size h/2. Midpoints are chained, x_t → mid1 → mid2 → mid3, each a jump of h/2 by the policy;
the third starts at t + h/2 again, as RK-4 has it. The head is linear and the same in all stages, so the average of the
logits is the head of the averaged hidden states: only hidden states are kept, and logits live one stage at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from tsdfm.flow import Noise
from tsdfm.student.fused import Target, compute_dtype
from tsdfm.student.midpoint import Policy, near


@dataclass(frozen=True)
class Estimator:
    """Stage times in units of h after t, their shares of the average, and how many midpoints join them."""

    times: tuple[float, ...]
    shares: tuple[float, ...]

    @property
    def midpoints(self) -> int:
        return len(self.times) - 1


ESTIMATORS = {
    "rk4": Estimator((0.0, 0.5, 0.5, 1.0), (1 / 6, 1 / 3, 1 / 3, 1 / 6)),
    "heun": Estimator((0.0, 0.5), (0.5, 0.5)),
    "euler": Estimator((0.0,), (1.0,)),
}
AVERAGES = ("logits", "probabilities")


@torch.no_grad()
def target_of(
    semi: nn.Module,
    x_t: Tensor,
    t: Tensor,
    h: Tensor,
    policy: Policy,
    noise: Noise,
    estimator: Estimator,
    average: str = "logits",
    anchor: int = 0,
) -> Target:
    """The target for states x_t [B, L] at t [B] over h [B] (best on the host, in float64), as one list of positions.

    The first `anchor` positions of every row are left out.
    """
    x, half, kept = x_t, h / 2, list[Tensor]()
    last = len(estimator.times) - 1
    for stage, (time, share) in enumerate(zip(estimator.times, estimator.shares, strict=True)):
        hidden, out = _stage(semi, x, t + time * h, half, last=stage == last)
        hidden = hidden[:, anchor:].flatten(0, 1)
        if average == "probabilities" or not kept:
            kept.append(hidden if average == "probabilities" else hidden * share)
        else:
            kept[0] += hidden * share
        if stage < last:
            # a jump starts where its stage was: mid3 leaves mid2 at t + h/2
            x = policy(x, out, t + time * h, half, noise)
            del out
    return Target(kept, estimator.shares if average == "probabilities" else (1.0,), *out)


def _stage(semi: nn.Module, x: Tensor, t: Tensor, h: Tensor, *, last: bool) -> tuple[Tensor, Any]:
    """The hidden states of a stage, and its logits or, at the last, the head they all go through."""
    sharded = isinstance(semi, FSDPModule)
    then = (lambda hidden, head: (hidden, head_of(head, copy=sharded))) if last else _with_logits
    found: tuple[Tensor, Any] = semi(x, near(t, x).float(), near(h, x).float(), then=then)
    return found


def _with_logits(hidden: Tensor, head: nn.Linear) -> tuple[Tensor, Tensor]:
    return hidden, head(hidden)


def head_of(head: nn.Linear, *, copy: bool = False) -> tuple[Tensor, Tensor | None]:
    """A head's weight and bias as products use them; a copy where they are gathered for this forward only (FSDP)."""
    dtype = compute_dtype(head.weight)
    weight = head.weight.detach().to(dtype, copy=copy)
    return weight, None if head.bias is None else head.bias.detach().to(dtype, copy=copy)
