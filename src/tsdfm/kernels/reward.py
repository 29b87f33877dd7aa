"""The dense reward of distribution matching, and sums of objectives; beside them the kernel in `reward_triton`.

    loss = Σ_v g(v) · r(v),   r(v) = clip[log q(v) − log p(v), ±c],   g student, q auxiliary, p teacher

The gradient goes through g alone and is exact over the vocabulary: ∂loss/∂l_v = g(v) · (r(v) − loss). It does not
change when a constant is added to r inside a row, so a head's bias may carry a reward of its own for every token.

Shapes: N positions, of which a chunk has n; V columns, V′ ≥ V with the padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tsdfm import kernels
from tsdfm.kernels import rows
from tsdfm.kernels.fused import Objective, Target, raised


def plain_reward(
    logits: Tensor, log_q: Tensor, log_p: Tensor, clip: float, *, gradient: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Loss [n], entropy of g in nats [n] and gradient [n, V] from logits of g, log q and log p, all [n, V].

    Everything is float32 or better; log q is used up.
    """
    log_g = logits.log_softmax(-1)
    g = log_g.exp()
    r = log_q.sub_(log_p).clamp_(-clip, clip)
    loss = (g * r).sum(-1)
    entropy = -torch.where(g > 0, g * log_g, 0.0).sum(-1)
    return loss, entropy, g.mul_(r.sub_(loss[:, None])) if gradient else None


@torch.no_grad()
def reward(
    logits: Tensor, aux: Tensor, teacher: Tensor, scale: Tensor, columns: int, clip: float, *, gradient: bool = True
) -> tuple[Tensor, Tensor]:
    """Loss and entropy of g [n] of each row of three logits [n, V′], of which the first V = `columns` count.

    `logits` become the gradient times `scale` [n], where asked for, and zero beyond V.
    """
    if kernels.on(logits, "rows"):
        from tsdfm.kernels.reward_triton import launch_reward

        return launch_reward(logits, aux, teacher, scale, columns, clip, gradient)
    wide = logits.dtype if logits.dtype == torch.float64 else torch.float32
    log_q, log_p = (x[:, :columns].to(wide).log_softmax(-1) for x in (aux, teacher))
    loss, entropy, grad = plain_reward(logits[:, :columns].to(wide), log_q, log_p, clip, gradient=gradient)
    if grad is not None:
        logits[:, :columns] = grad * scale[:, None].to(grad.dtype)
        logits[:, columns:] = 0
    return loss, entropy


@dataclass(frozen=True)
class Reward:
    """The reward of positions whose auxiliary and teacher are given by hidden states and heads.

    What it finds is left in `kept` [2, N], where that is given: the loss, and the entropy of g in nats.
    """

    aux: Target
    teacher: Target
    clip: float
    kept: Tensor | None = None

    @property
    def has_kernel(self) -> bool:
        """Padded heads are what the kernel takes."""
        return all(target.head is not None and target.raised is None for target in (self.aux, self.teacher))

    def by_kernel(self, logits: Tensor, part: slice, scale: Tensor, columns: int, gradient: bool) -> Tensor:
        """As `Objective` says, by `reward`."""
        aux, teacher = (target.head.whole(target.hidden[0][part]) for target in (self.aux, self.teacher) if target.head)
        return self._keep(part, *reward(logits, aux, teacher, scale, columns, self.clip, gradient=gradient))

    def __call__(self, logits: Tensor, part: slice, gradient: bool) -> rows.Graded:
        log_q, log_p = self.aux.log_p(part), self.teacher.log_p(part)
        loss, entropy, grad = plain_reward(logits, log_q, log_p, self.clip, gradient=gradient)
        return self._keep(part, loss, entropy), grad

    def _keep(self, part: slice, loss: Tensor, entropy: Tensor) -> Tensor:
        if self.kept is not None:
            self.kept[0, part], self.kept[1, part] = loss, entropy
        return loss


@dataclass(frozen=True)
class Raised:
    """An objective of logits whose column of one token each [N] is raised by a number [N]: a constant to the gradient.

    By plain torch alone: a number of this size does not fit into logits in bf16 without a loss.
    """

    objective: Objective
    tokens: Tensor
    by: Tensor

    def __call__(self, logits: Tensor, part: slice, gradient: bool) -> rows.Graded:
        return self.objective(raised(logits, self.tokens[part], self.by[part]), part, gradient)


@dataclass(frozen=True)
class Together:
    """Σ_k weight_k · loss_k of several objectives of the same positions, each with weights [N] of its own."""

    parts: Sequence[tuple[Objective, Tensor]]

    @property
    def has_kernel(self) -> bool:
        """Every part must have one."""
        return all(getattr(objective, "has_kernel", False) for objective, _ in self.parts)

    def by_kernel(self, logits: Tensor, part: slice, scale: Tensor, columns: int, gradient: bool) -> Tensor:
        """As `Objective` says; every part but the first works on a copy of the chunk's logits."""
        copies = [logits, *(logits.clone() for _ in self.parts[1:])]
        losses = torch.zeros(len(logits), device=logits.device)
        for own, (objective, weight) in zip(copies, self.parts, strict=True):
            each = weight[part].to(scale.dtype)
            losses += each * objective.by_kernel(own, part, scale * each, columns, gradient)  # type: ignore[attr-defined]
        for own in copies[1:] if gradient else ():
            logits += own
        return losses

    def __call__(self, logits: Tensor, part: slice, gradient: bool) -> rows.Graded:
        losses = torch.zeros(len(logits), dtype=logits.dtype, device=logits.device)
        grads: Tensor | None = None
        for objective, weight in self.parts:
            loss, grad = objective(logits.clone(), part, gradient)
            each = weight[part].to(loss.dtype)
            losses += each * loss
            if grad is not None:
                grad *= each[:, None]
                grads = grad if grads is None else grads.add_(grad)
        return losses, grads
