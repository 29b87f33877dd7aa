"""Recorded steps of a student against plain ones on the same input: what is timed must be the same step."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness import say
from tsdfm.distil.task import StudentTask
from tsdfm.distil.times import is_large
from tsdfm.engine import graphs
from tsdfm.engine.learner import Learner
from tsdfm.engine.precision import autocast
from tsdfm.engine.runner import Runner
from tsdfm.tokens.loader import HostBatch


def same_targets(name: str, learner: Learner, rows: list[HostBatch]) -> None:
    """Recorded targets against plain ones, of every batch: hidden states and what was counted."""
    task: Any = learner.task
    rollout = task.rollout
    recorded, same, far = rollout.recorded, 0, 0.0
    if recorded is None:
        return
    for batch in rows:
        found: list[list[Tensor]] = []
        with torch.no_grad(), autocast(learner.bf16, task.world.device):
            states = task.states(batch.tokens, batch.rows, batch.numbers, is_large(batch.numbers, task.times.share))
            try:
                for rollout.recorded in (recorded, None):
                    stats = rollout.stats(1)
                    target = rollout.target(task.teacher.at(0), states, 1, stats)
                    counted = [stats.packed(task.world.device)] if stats is not None else []
                    found.append([*target.hidden, *counted] if target else [])
            finally:
                rollout.recorded = recorded
        same += all(torch.equal(a, b) for a, b in zip(*found, strict=True))
        gaps = (float((a - b).norm() / b.norm().clamp(min=1e-30)) for a, b in zip(*found, strict=True))
        far = max(far, *gaps, 0.0)
    made = recorded.routines
    say(
        f"  {name}: targets of {len(rows)} batches, {same} the same bits, all to {far:.1e}; {len(made.made)} recordings"
        + ("  !!! recording FAILED" if made.off else "")
    )


def same_bits(name: str, learner: Learner, device: torch.device) -> None:
    """Replays against plain passes on the same input: semi-teacher, student and its gradients, compass."""
    task = learner.task
    if device.type != "cuda" or not isinstance(task, StudentTask) or learner.ema is None:
        return
    spec, rows = task.spec, learner.loop.batch
    mine_of: Any = learner.runner.hidden
    semi_net: Any = task.teacher.at(0)
    semi_of: Any = semi_net.hidden
    made = torch.Generator(device).manual_seed(5)
    x = torch.randint(spec.vocab, (rows, spec.length), generator=made, device=device)
    t, h = (torch.rand(rows, generator=made, device=device) for _ in range(2))

    def semi() -> list[Tensor]:
        most = math.ceil(rows * task.times.share)
        with torch.no_grad(), autocast(learner.bf16, device):
            return [semi_of(x[:most].clone(), t[:most].clone(), h[:most].clone())]

    def student() -> list[Tensor]:
        learner.optimiser.adamw.zero_grad(set_to_none=True)
        learner.model.train()
        torch.manual_seed(3)
        with autocast(learner.bf16, device):
            out = mine_of(x.clone(), t.clone(), h.clone())
        (out.float() * torch.linspace(-1, 1, out.shape[-1], device=device)).mean().backward()
        found = [out.detach().clone(), *(p.grad.clone() for p in learner.plain.parameters() if p.grad is not None)]
        learner.optimiser.adamw.zero_grad(set_to_none=True)
        return found

    def compass() -> list[Tensor]:
        energy: Any = getattr(task.rollout, "compass", None)
        return [energy.energy(x.repeat(2, 1)[:size]) for size in (5, 10, 3)] if energy else []

    for what, run in {"semi-teacher": semi, "student and gradients": student, "compass": compass}.items():
        run(), run()
        mine = run()
        with graphs.plain():
            theirs, again = run(), run()
        same, twice = (all(torch.equal(a, b) for a, b in zip(theirs, o, strict=True)) for o in (mine, again))
        pairs = zip(mine, theirs, strict=True)
        far = max((float((a - b).norm() / b.norm().clamp(min=1e-30)) for a, b in pairs), default=0.0)
        say(f"  {name}: {what}: {len(mine)} tensors, replayed to {far:.1e}, same bits {same} (plain twice: {twice})")
    recorded = {k: len(v.made) for k, v in holders(learner).items()}
    broken = [k for k, v in holders(learner).items() if v.off]
    say(f"  {name}: shapes recorded {recorded}" + (f"  !!! recording FAILED for {broken}" if broken else ""))


def holders(learner: Learner) -> dict[str, Any]:
    """The recorded functions of a learner."""
    rollout = getattr(learner.task, "rollout", None)
    compass = getattr(getattr(rollout, "compass", None), "net", None)
    nets = {"student": learner.runner, "semi": learner.average, "compass": compass}
    found = {name: net.body for name, net in nets.items() if isinstance(net, Runner)}
    return {name: body for name, body in found.items() if hasattr(body, "made")}
