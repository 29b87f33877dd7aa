"""The large-step target as one recording: four stages of the semi-teacher, the head, and the navigation between them.

A navigated target is some 600 small operations between a dozen passes of networks. All that the host decides about
them is how many rows each midpoint looks at; with that, the target is recorded (`engine.graphs`) and replayed by one
call. Its operations are the very ones of `distil.chain`, so its results are the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from tsdfm import kernels
from tsdfm.distil.chain import Estimator, Heads, chain, host_side, pack, unpack
from tsdfm.distil.meaning import Stages
from tsdfm.distil.midpoint import Blind, Navigated, Policy, near
from tsdfm.distil.stats import Stats
from tsdfm.engine.graphs import GraphMemory, Routines
from tsdfm.flow import RowNoise
from tsdfm.kernels.fused import Target, compute_dtype
from tsdfm.kernels.head import Head, padded


def may_record(policy: Policy, x_t: Tensor) -> bool:
    """Can a target by this policy be recorded? Not where the host would look at the device's numbers, or does more.

    What is held must be the same in every step: prompts are not.
    """
    if not (kernels.on(x_t, "draw") and kernels.on(x_t, "head")):
        return False
    if not isinstance(policy, Blind) or (policy.held is not None and policy.held.ndim > 1):
        return False
    if not isinstance(policy, Navigated):
        return True
    return policy.settings.agree == 0 and not (policy.stats is not None and policy.stats.probe)


@dataclass
class RecordedTarget:
    """`target_of` for one semi-teacher, whose weights and head are only ever changed in place."""

    semi: nn.Module
    pool: GraphMemory
    routines: Routines = field(init=False)
    head: Head | None = None

    def fits(self, semi: nn.Module, policy: Policy, x_t: Tensor) -> bool:
        """Can the target of this network by this policy be had from a recording?"""
        return semi is self.semi and may_record(policy, x_t)

    def __post_init__(self) -> None:
        self.routines = Routines(self.semi, self.semi, self.pool)

    @torch.no_grad()
    def __call__(
        self,
        x_t: Tensor,
        t: Tensor,
        h: Tensor,
        policy: Any,
        noise: RowNoise,
        estimator: Estimator,
        average: str,
        anchor: int,
        rows: int,
    ) -> Target:
        head, values = self.padded_head(), host_side(t, h, policy, estimator, rows)
        parts = tuple((len(value), value.dtype) for value in values)
        seed, stream, draws = noise.seed, noise.stream, noise.draws
        counted = isinstance(policy, Navigated) and policy.stats is not None

        def work(x: Tensor, words: Tensor, numbers: Tensor) -> list[Tensor]:
            stats = Stats(policy.settings.k) if counted else None
            own = replace(policy, stats=stats) if counted else policy
            again, heads = RowNoise(seed, numbers, stream, draws), Heads(copy=False, ready=head)
            stages = Stages(average, anchor)
            chain(self.semi, x, unpack(words, parts), own, again, heads, estimator, stages, rows)
            return stages.kept if stats is None else [*stages.kept, stats.packed(x.device)]

        plan = (parts, seed, stream, draws, head.weight.data_ptr(), estimator, average, anchor, rows, *of(policy))
        kept = self.routines.call(plan, work, (x_t, near(pack(values), x_t), noise.rows))
        noise.draws += estimator.midpoints  # as if it had been asked
        if counted:
            policy.stats.take(kept.pop())
            policy.stats.midpoints += rows * estimator.midpoints
        shares = estimator.shares if average == "probabilities" else (1.0,)
        return Target(kept, shares, *Heads(copy=False, ready=head).parts())

    def padded_head(self) -> Head:
        """The padded head at an address that stays, with the weights of now."""
        head: Any = self.semi.head
        dtype = compute_dtype(head.weight)
        if self.head is None or self.head.weight.dtype != dtype or self.head.columns != len(head.weight):
            self.head = padded(head.weight, head.bias, dtype)
            return self.head
        self.head.weight[: self.head.columns] = head.weight
        if self.head.bias is not None:
            self.head.bias[: self.head.columns] = head.bias
        return self.head


def of(policy: Any) -> tuple[Any, ...]:
    """What a plan says of a policy; τ has done its part when the rows above it are known."""
    if not isinstance(policy, Navigated):
        return type(policy), policy.jump, id(policy.held)
    settings = replace(policy.settings, tau=0.0, tau_end=None)
    return type(policy), policy.jump, id(policy.held), settings, id(policy.compass), policy.stats is None
