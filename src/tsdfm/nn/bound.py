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


def bound_rows(
    model: nn.Module,
    spec: VelocitySpec,
    bound: Bound,
    x_1: Tensor,
    given: Tensor,
    noise: RowNoise,
    times: int,
    h: float = 0.0,
) -> Tensor:
    """Nats per free token [n] of rows x_1 [n, L], of which `given` [n, L] is known; the network is told h."""
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
    """The bound of `rows` held-out rows, nats per token, and bits per character of their text; nothing without one.

    What is given of a row, its anchor and its prompt, is not counted.
    """
    if bound is None:
        return {}
    chosen, parts = held_out_parts(valid, rows, loop, world)
    total, free = torch.zeros((), dtype=torch.float64, device=world.device), ~valid.given(chosen)
    for part in parts:
        x_1 = torch.from_numpy(valid.take(part).astype("int64")).to(world.device)
        noise = RowNoise(loop.seed, torch.tensor(part, device=world.device), stream=EVAL_STREAM)
        given = torch.from_numpy(valid.given(part)).to(world.device)
        weight = (~given).sum(-1) / (free.sum() / len(chosen))  # 1 where all rows have as many free tokens
        total += (bound_rows(model, spec, bound, x_1, given, noise, times, h) * weight).sum()
    nats = total.item() / sum(map(len, parts))
    characters = valid.count_characters(valid.take(chosen)[free])
    bits = bits_per_character(nats, int(free.sum()), characters) if characters else float("nan")
    return {"elbo": nats, "bits_per_character": bits}
