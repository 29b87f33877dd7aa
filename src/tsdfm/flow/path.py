"""The mixture path from x_0 (noise) to x_1 (data).

x_t[j] = x_1[j] with probability κ(t), else x_0[j],      independently for every position j.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tsdfm.flow.noise import Noise, uniform
from tsdfm.flow.schedule import Schedule


def interpolate(x_0: Tensor, x_1: Tensor, t: Tensor, schedule: Schedule, noise: Noise | Tensor) -> Tensor:
    """x_t [B, L] of the pair (x_0, x_1) at the rows' times t [B]: x_1 where u < κ(t), x_0 elsewhere.

    `noise` may also be the uniforms u [B, L] themselves. Two times of one pair with the same u are nested: what has
    arrived at t has arrived at every later t′.

    >>> u = uniform(noise, x_1.shape, x_1.device)
    >>> x_s, x_t = (interpolate(x_0, x_1, time, schedule, u) for time in (s, t))
    """
    u = noise if isinstance(noise, Tensor) else uniform(noise, x_1.shape, x_1.device)
    return torch.where(u < schedule.kappa(t).view(-1, *[1] * (x_1.ndim - 1)), x_1, x_0)
