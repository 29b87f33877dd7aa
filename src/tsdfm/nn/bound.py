"""The bound of −log p on held-out rows: the same number for every method that trains a velocity network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tsdfm.engine.distributed import Processes
from tsdfm.engine.rows import held_out_parts
from tsdfm.engine.settings import LoopSettings
from tsdfm.flow import Bound, RowNoise, bits_per_character
from tsdfm.nn.velocity import VelocitySpec, as_model
from tsdfm.tokens.rows import TokenRows

EVAL_STREAM = 1  # noise of an evaluation, apart from the training's


def bound_of(
    model: nn.Module, spec: VelocitySpec, bound: Bound, x_1: Tensor, noise: RowNoise, times: int, h: float = 0.0
) -> Tensor:
    """Nats per token [n] of rows x_1 [n, L], their anchor given, by a network of `spec` told the step size h."""
    given = torch.arange(spec.length, device=x_1.device) < spec.anchor
    flow = (spec.flow_schedule(), spec.flow_source(), times, noise)
    return bound.rows(as_model(model, spec, bound.reads), x_1, *flow, h=h, given=given)


def held_out_bound(
    model: nn.Module,
    spec: VelocitySpec,
    bound: Bound | None,
    valid: TokenRows,
    rows: int,
    times: int,
    loop: LoopSettings,
    world: Processes,
    h: float = 0.0,
) -> dict[str, float]:
    """The bound of `rows` held-out rows, nats per token, and bits per character of their text; nothing without one."""
    if bound is None:
        return {}
    chosen, parts = held_out_parts(valid, rows, loop, world)
    total = torch.zeros((), dtype=torch.float64, device=world.device)
    for part in parts:
        x_1 = torch.from_numpy(valid.take(part).astype("int64")).to(world.device)
        noise = RowNoise(loop.seed, torch.tensor(part, device=world.device), stream=EVAL_STREAM)
        total += bound_of(model, spec, bound, x_1, noise, times, h).sum()
    nats = total.item() / sum(map(len, parts))
    characters = valid.count_characters(valid.take(chosen))
    tokens = len(chosen) * (spec.length - spec.anchor)
    bits = bits_per_character(nats, tokens, characters) if characters else float("nan")
    return {"elbo": nats, "bits_per_character": bits}
