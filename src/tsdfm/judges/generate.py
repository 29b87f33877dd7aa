"""Writing token by token with a key-value cache: the baseline few-step generation is compared with."""

from __future__ import annotations

import torch
from torch import Tensor

from tsdfm.errors import UserError
from tsdfm.flow import Noise, draw, shape_logits
from tsdfm.flow.noise import uniform
from tsdfm.nn.causal import CausalNet


@torch.no_grad()
def generate(
    net: CausalNet,
    given: Tensor,
    length: int,
    noise: Noise,
    *,
    rows: int | None = None,
    temperature: float = 1.0,
    top_p: float = 1.0,
    hold: int | None = None,
) -> Tensor:
    """Rows [B, 1 + length] that begin with `given` [P] (the start token and a prefix), drawn left to right.

    All uniforms are drawn beforehand, one for each position of each row: with a `RowNoise`, a row depends on its own
    number alone. `rows` says how many there are if `noise` is a plain generator. After a row has drawn the token
    `hold` (end-of-text, where a row holds one document) it is filled up with it. Every step has the same shapes and
    none waits for the device, so a GPU is kept busy without a look at what was drawn.
    """
    batch = len(noise) if rows is None and not isinstance(noise, torch.Generator) else rows
    if batch is None:
        raise UserError("generation with a plain torch.Generator needs the number of rows")
    if not 1 <= len(given) <= 1 + length:
        raise UserError(f"the prefix has {len(given) - 1} tokens, the model writes {length}: shorten it")
    device = net.embedding.weight.device
    u = uniform(noise, (batch, length), device)
    tokens = torch.zeros(batch, 1 + length, dtype=torch.int64, device=device)
    tokens[:, : len(given)] = given
    ended = torch.zeros(batch, dtype=torch.bool, device=device)
    places = torch.arange(length, device=device)
    cache = net.cache(batch, length, torch.bfloat16 if torch.is_autocast_enabled(device.type) else torch.float32)
    read = 0
    for place in range(len(given), 1 + length):  # the prefix goes in at once, then one token at a time
        logits = net.step(tokens[:, read:place], places[read:place], cache)
        drawn = draw(shape_logits(logits, temperature, top_p), u[:, place - 1])
        if hold is not None:
            drawn = torch.where(ended, hold, drawn)
            ended = ended | (drawn == hold)
        tokens[:, place] = drawn
        read = place
    return tokens
