"""The optimiser, its learning rate, and a step that skips itself when the gradient is not finite."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from tsdfm.engine.muon import Muon, hidden_matrices
from tsdfm.engine.settings import OptimSettings
from tsdfm.engine.sharded import sharded_tensor
from tsdfm.errors import UserError


def lr_at(step: int, steps: int, optim: OptimSettings) -> float:
    """Learning rate of step `step` (from 0) of `steps`.

    step < warmup:  lr · (step + 1) / warmup
    after it:       lr · [floor + (1 − floor) · (1 + cos(π u)) / 2],  u from 0 (end of warm-up) to 1 (last step)

    With `decay`, u is 0 until so many steps before the last: the rate holds its peak, and how long it does need not be
    known before, as a run may be resumed with other `steps`.
    """
    if step < optim.warmup:
        return optim.lr * (step + 1) / optim.warmup
    last = steps - 1
    begin = optim.warmup if optim.decay is None else max(optim.warmup, last - optim.decay)
    u = min(1.0, max(0, step - begin) / max(1, last - begin))
    return optim.lr * (optim.floor + (1 - optim.floor) * (1 + math.cos(math.pi * u)) / 2)


def decays(model: nn.Module) -> dict[str, bool]:
    """Which trained parameters weight decay pulls to zero: matrices; not vectors (biases, norms), not embeddings."""
    embeddings = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters(recurse=False)}
    return {n: p.ndim >= 2 and id(p) not in embeddings for n, p in model.named_parameters() if p.requires_grad}


class Optimiser:
    """Fused AdamW over the trained parameters of `model` (already wrapped, so that its parameters are the final ones).

    With `rule = "muon"` the matrices of its blocks go to Muon, and the rest stays with AdamW.

    Its state exists from the start rather than from the first step: a run that will not fit in memory says so at once,
    and saving and loading need no special case for a parameter that has had no gradient yet.
    """

    def __init__(self, model: nn.Module, settings: OptimSettings) -> None:
        self.settings = settings
        self.pace = 1.0  # a factor on the learning rate, for a task that slows its training down
        self.params = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self.params:
            raise UserError("the model has no parameter to train")
        pulled = decays(model)
        turned = {n: self.params[n] for n in hidden_matrices(model)} if settings.rule == "muon" else {}
        if settings.rule == "muon" and not turned:
            raise UserError("this network has no blocks of matrices for Muon: use optim.rule adamw")
        self.muon = Muon(turned, momentum=settings.momentum, weight_decay=settings.weight_decay) if turned else None
        rest = self.rest = {n: p for n, p in self.params.items() if n not in turned}
        groups = [
            {"params": [p for n, p in rest.items() if pulled[n]], "weight_decay": settings.weight_decay},
            {"params": [p for n, p in rest.items() if not pulled[n]], "weight_decay": 0.0},
        ]
        self.adamw = torch.optim.AdamW(
            [g for g in groups if g["params"]],
            lr=settings.lr,
            betas=(settings.beta1, settings.beta2),
            eps=settings.eps,
            fused=True,
        )
        for p in rest.values():
            self.adamw.state[p] = {
                "step": torch.zeros((), dtype=torch.float32, device=p.device),
                "exp_avg": torch.zeros_like(p, memory_format=torch.preserve_format),
                "exp_avg_sq": torch.zeros_like(p, memory_format=torch.preserve_format),
            }

    def step(self, lr: float) -> tuple[Tensor, Tensor]:
        """Clip, update, clear the gradients. Returns (gradient norm, was it non-finite), both on the device.

        A non-finite norm leaves weights, moments and step counts as they were. Fused AdamW decides that on the device
        (`found_inf`, the flag torch's own GradScaler sets), so the host never waits to find out. Without any gradient
        nothing happens.
        """
        grads = [p.grad for p in self.params.values() if p.grad is not None]
        if not grads:
            norm = torch.zeros((), device=next(iter(self.params.values())).device)
            return norm, norm > 0
        lr *= self.pace
        norm = total_norm(grads)
        bad = ~torch.isfinite(norm)
        if self.settings.clip > 0:
            nn.utils.clip_grads_with_norm_(list(self.params.values()), self.settings.clip, norm)
        for group in self.adamw.param_groups:
            group["lr"] = lr
        self.adamw.found_inf = bad.to(torch.float32)  # type: ignore[attr-defined]
        self.adamw.step()
        if self.muon is not None:
            self.muon.step(lr, ~bad)
        for p in self.params.values():
            p.grad = None
        return norm, bad

    def restart(self) -> None:
        """Forget all moments and step counts, as if no step had been made."""
        for tensor in self.state().values():
            tensor.zero_()

    def state(self) -> dict[str, Tensor]:
        """Every tensor of the optimiser's state under `parameter.field`, the live tensors themselves."""
        turned = self.muon.state() if self.muon is not None else {}
        moments = {f"{n}.{key}": value for n, p in self.rest.items() for key, value in self.adamw.state[p].items()}
        return moments | {f"{n}.momentum": value for n, value in turned.items()}


def total_norm(grads: Iterable[Tensor]) -> Tensor:
    """Euclidean norm of all gradients together, the whole one also where each process holds a shard."""
    norm = nn.utils.get_total_norm(list(grads))
    return norm.full_tensor() if sharded_tensor(norm) else norm
