"""The weights a student starts from: a teacher's (DFM init) or another student's (FS-DFM init).

A teacher knows nothing of step sizes. Its weights are copied, and those of the step-size conditioning are new: random,
as FS-DFM has them, or fitted so that every fuser, before its SiLU, gives back the teacher's own time embedding of what
it is told: t, σ, or always 0. The student then begins as its teacher, whatever h is, instead of having to learn that.
So does one that is told a latent number λ: its embedding of λ begins small beside those of the tokens, with mean 0.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tsdfm.distil.settings import LEVELS
from tsdfm.distil.times import GRID
from tsdfm.errors import UserError
from tsdfm.nn.ddit import LATENT_SCALE, DDiT
from tsdfm.nn.network import TokenNet, condition_of
from tsdfm.nn.velocity import VelocitySpec

RIDGE = 1e-6
LATENT = 0.3  # size of a new λ's embedding beside a token's: of one as large as a network draws it, tokens are drowned


def start_from(
    student: TokenNet, weights: dict[str, Tensor], spec: VelocitySpec, *, step_size: bool, fit: bool, where: str
) -> None:
    """Fill a student, told the time as `spec` says, with weights of a teacher, or of a student where `step_size`."""
    mine = student.state_dict()
    untold = not condition_of(weights)  # a decoder of a public file: its condition is new, and does nothing at first
    told_h = condition_of(mine) if untold else {name for name in mine if is_new(name)}
    latent = {name for name in mine if name.startswith("latent.")} - set(weights)
    if set(weights) != (set(mine) if step_size else set(mine) - told_h) - latent:
        raise UserError(f"the network in {where} has other parts than a student of it: is it a teacher or a student?")
    student.load_state_dict(weights, strict=step_size and not latent)
    if fit and student.step_size and not step_size and not untold:
        fit_step_size(student, spec)
    if latent:
        assert isinstance(student, DDiT)  # a decoder is told no latent number
        shrink_latent(student)


def step_size_weights(weights: dict[str, Tensor], student: TokenNet, where: str) -> dict[str, Tensor]:
    """The step-size weights among those of another student, for a student of the same size."""
    mine = {name: value.shape for name, value in student.state_dict().items() if is_new(name)}
    found = {name: weights[name] for name in mine if name in weights}
    if not mine or {name: value.shape for name, value in found.items()} != mine:
        raise UserError(f"{where} has no step-size weights of this size: take a student of the same net settings")
    return found


def is_new(name: str) -> bool:
    """Does this weight belong to the step-size conditioning, which a teacher does not have?"""
    return any(part in ("step", "join", "fuser") for part in name.split("."))


@torch.no_grad()
def shrink_latent(student: DDiT) -> None:
    """Scale and shift the embedding e(λ) [D] of a latent number, new in this student, over λ ∈ (0, 1):

    E e(λ) = 0,     E |e(λ)|² = LATENT² · mean |token's embedding|²
    """
    assert student.latent is not None
    last = student.latent.mlp[-1]
    assert isinstance(last, nn.Linear)
    table = student.embedding.weight
    e = student.latent(LATENT_SCALE * (torch.arange(256, device=table.device, dtype=table.dtype) + 0.5) / 256)
    by = LATENT * table.square().mean().sqrt() / (e - e.mean(0)).square().mean().sqrt()
    last.weight.mul_(by)
    last.bias.sub_(e.mean(0)).mul_(by)


@torch.no_grad()
def fit_step_size(student: TokenNet, spec: VelocitySpec) -> None:
    """Choose the fusers, all alike, such that fuser(condition(t, h)) ≈ silu(time(t)), a teacher's condition.

    A fuser is a linear map A c + a and a SiLU, so A c(t, h) + a ≈ time(t) is a least-squares problem in A and a: the
    2C features of c are random functions of (t, h), and time(t) is one smooth curve.
    """
    t = torch.arange(0, GRID + 1, 8, dtype=torch.float32).div_(GRID)
    h = 2.0 ** -torch.arange(LEVELS + 1, dtype=torch.float32)
    t, h = t.repeat_interleave(len(h)), h.repeat(len(t))
    device = next(student.parameters()).device
    t, h = spec.told(t.to(device), h)[0], h.to(device)
    features = student.condition(t, h).double()
    features = torch.cat([features, torch.ones_like(features[:, :1])], dim=1)
    wanted = student.time(t).double()
    gram = features.T @ features / len(t)
    gram.diagonal().add_(RIDGE * float(gram.diagonal().mean()))
    found = torch.linalg.solve(gram, features.T @ wanted / len(t))  # [2C + 1, C]
    for fuser in (student.fuser, *(block.fuser for block in student.blocks)):
        assert isinstance(fuser, nn.Sequential)
        linear = fuser[0]
        assert isinstance(linear, nn.Linear)
        linear.weight.copy_(found[:-1].T)
        linear.bias.copy_(found[-1])
