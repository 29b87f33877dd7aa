"""The compass inside the reward: the teacher's law at each position, tilted towards texts of lower energy.

    log p̃(v | z_b) = log p(v | z_b) − β · s_i · e_v + const,   s_i = ∂E/∂e(z_b,i)

e_v is the compass's embedding of token v, so s_i · (e_v − e(z_b,i)) is, to first order, what its energy rises by if
position i becomes v. One pass through the compass and back gives all of them. They are products of s with embeddings,
as logits are of a hidden state with a head, so the tilted teacher is one head of both side by side.

Shapes: B rows of L positions, N of them free in all; D the teacher's width, C the compass's, V tokens.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from tsdfm.compass.model import Compass
from tsdfm.kernels.fused import Target
from tsdfm.kernels.head import padded


class Tilt:
    """weight · (the first-order change of a compass's energy), taken off a teacher's logits."""

    def __init__(self, weight: float, compass: Compass) -> None:
        self.weight, self.compass = weight, compass

    def on(self, teacher: Target, x: Tensor, anchor: int) -> Target:
        """The teacher's answer to states x [B, L], tilted: hidden states [N, D + C] and a head [V, D + C].

        The first `anchor` positions of a row are not free.
        """
        slopes = self.compass.slopes(x)[:, anchor:].flatten(0, 1)
        each = self.compass.net.embedding.weight[: len(teacher.weight)] * -self.weight
        weight = torch.cat([teacher.weight, each.to(teacher.weight.dtype)], dim=1)
        hidden = torch.cat([teacher.hidden[0], slopes.to(teacher.hidden[0].dtype)], dim=1)
        head = None if teacher.head is None else padded(weight, teacher.bias, weight.dtype)
        return replace(teacher, hidden=[hidden], weight=weight, head=head)
