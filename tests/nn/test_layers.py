"""The parts: relative rotary positions, float32 norms, sinusoidal features, two-sided attention."""

from __future__ import annotations

import math

import pytest
import torch
from tiny_nets import stir, tiny_net, tiny_shape

from tsdfm.nn.layers import Block, Norm, Rotary, ScalarEmbedding, attention, modulate, rotate

F64 = torch.float64


def test_rotary_scores_depend_on_the_distance_alone() -> None:
    """⟨rotate(q, i), rotate(k, j)⟩ is a function of i − j: the matrix of scores is constant along its diagonals."""
    made = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 8, generator=made, dtype=F64)
    cos, sin = Rotary(8).double()(12)
    turned_q = rotate(q.expand(1, 1, 12, 8), cos, sin)[0, 0]
    turned_k = rotate(k.expand(1, 1, 12, 8), cos, sin)[0, 0]
    scores = turned_q @ turned_k.T
    for distance in range(-11, 12):
        line = scores.diagonal(distance)
        torch.testing.assert_close(line, line[:1].expand_as(line))
    assert scores[0].std() > 0.01  # and it does depend on the distance
    torch.testing.assert_close(turned_q.norm(dim=-1), q.norm().expand(12))  # a turn keeps the length


def test_rotary_by_complex_numbers() -> None:
    """The same as multiplying (x_i + i·x_{i+E/2}) by e^{i·position·rate}, rate = 10 000^(−2i/E)."""
    x = torch.randn(1, 1, 5, 6, generator=torch.Generator().manual_seed(1), dtype=F64)
    rates = torch.tensor([10_000.0 ** (-2 * i / 6) for i in range(3)], dtype=F64)
    turn = torch.polar(torch.ones(5, 3, dtype=F64), torch.arange(5, dtype=F64)[:, None] * rates)
    wanted = torch.complex(x[..., :3], x[..., 3:]) * turn
    found = rotate(x, *Rotary(6).double()(5))
    torch.testing.assert_close(found, torch.cat([wanted.real, wanted.imag], -1), rtol=1e-5, atol=1e-6)


def test_attention_is_invariant_to_a_shift() -> None:
    block = Block(tiny_shape(), fuse=False).double()
    cos, sin = Rotary(8).double()(30)
    x = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(2), dtype=F64)
    near, far = block.attend(x, cos[:6], sin[:6]), block.attend(x, cos[20:26], sin[20:26])
    torch.testing.assert_close(near, far)
    stretched = block.attend(x, cos[:12:2], sin[:12:2])
    assert (near - stretched).abs().amax() > 1e-4


def test_attention_by_hand() -> None:
    """softmax(q·kᵀ/√E)·v, head by head, over all positions."""
    block = Block(tiny_shape(), fuse=False).double()
    x = torch.randn(1, 5, 16, generator=torch.Generator().manual_seed(3), dtype=F64)
    cos, sin = Rotary(8).double()(5)
    q, k, v = (x @ block.qkv.weight.T).split(16, dim=-1)
    heads = []
    for head in (slice(0, 8), slice(8, 16)):
        turned = [rotate(part[None, ..., head], cos, sin)[0] for part in (q, k)]
        weights = (turned[0] @ turned[1].transpose(1, 2) / math.sqrt(8)).softmax(-1)
        heads.append(weights @ v[..., head])
    wanted = torch.cat(heads, -1) @ block.out.weight.T
    torch.testing.assert_close(block.attend(x, cos, sin), wanted)


def test_norm_has_a_weight_and_no_bias() -> None:
    norm = Norm(16)
    assert [name for name, _ in norm.named_parameters()] == ["weight"]
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(4)) * 5 + 3
    stir(norm)
    wanted = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt() * norm.weight
    torch.testing.assert_close(norm(x), wanted)
    assert norm(x.double()).dtype == F64


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_norms_are_float32_under_autocast(dtype: torch.dtype) -> None:
    x = (torch.randn(64, 16, generator=torch.Generator().manual_seed(5)) + 8).to(dtype)
    norm = stir(Norm(16))
    exact = torch.nn.functional.layer_norm(x.double(), (16,)) * norm.weight.double()
    with torch.autocast("cpu", torch.bfloat16):
        found = norm(x)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-4)  # bfloat16 would miss by 1e−2


def test_the_residual_stream_stays_float32_under_autocast() -> None:
    net = stir(tiny_net())
    seen: dict[str, torch.dtype] = {}
    for name, module in net.named_modules():
        if isinstance(module, Norm | Block):
            module.register_forward_hook(lambda _, __, out, name=name: seen.__setitem__(name, out.dtype))
    x_t, t = torch.arange(6)[None], torch.tensor([0.5])
    with torch.autocast("cpu", torch.bfloat16):
        half = net(x_t, t)
    assert len(seen) == 3 * 2 + 1
    assert set(seen.values()) == {torch.float32}
    assert half.dtype == torch.bfloat16  # the matrix products are the half ones
    torch.testing.assert_close(half.float(), net(x_t, t), rtol=0.1, atol=0.2)


def test_time_features() -> None:
    """256 features: cosines then sines of t·10 000^(−i/128)."""
    embedding = ScalarEmbedding(8)
    inside: list[torch.Tensor] = []
    embedding.mlp.register_forward_pre_hook(lambda _, given: inside.append(given[0]))
    assert embedding(torch.tensor([0.0, 0.3, 1.0])).shape == (3, 8)
    for row, t in zip(inside[0], (0.0, 0.3, 1.0), strict=True):
        angles = [t * 10_000 ** (-i / 128) for i in range(128)]
        wanted = torch.tensor([math.cos(a) for a in angles] + [math.sin(a) for a in angles])
        torch.testing.assert_close(row, wanted, rtol=1e-5, atol=1e-6)
    kinds = [type(layer).__name__ for layer in embedding.mlp]
    assert kinds == ["Linear", "SiLU", "Linear"]


def test_modulate() -> None:
    x = torch.randn(2, 3, 4)
    shift, scale = torch.randn(2, 2, 4)
    found = modulate(x, shift, scale)
    for b in range(2):
        for i in range(3):
            torch.testing.assert_close(found[b, i], x[b, i] * (1 + scale[b]) + shift[b])


def test_tables_are_not_saved() -> None:
    """They follow from the shape; a checkpoint holds weights alone."""
    net = tiny_net(step_size=True)
    assert set(net.state_dict()) == {name for name, _ in net.named_parameters()}


def test_dropout_is_on_both_branches() -> None:
    block = stir(Block(tiny_shape(dropout=0.5), fuse=False)).train()
    seen: list[torch.Tensor] = []
    block.dropout.register_forward_hook(lambda _, __, out: seen.append(out))
    block(torch.randn(1, 6, 16), torch.randn(1, 8), *Rotary(8)(6))
    assert len(seen) == 2
    assert all(0.2 < (out == 0).float().mean() < 0.8 for out in seen)


@pytest.mark.parametrize("length", [64, 600])
def test_attention_in_16_bits(length: int) -> None:
    """By plain products and by torch's own kernel, which long rows take: as near to float64 as 16 bits allow."""
    made = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, length, 16, generator=made, dtype=F64)
    want = torch.softmax(q @ k.transpose(-1, -2) / 4, dim=-1) @ v
    found = attention(*(x.bfloat16() for x in (q, k, v)))
    assert found.dtype == torch.bfloat16
    assert float((found.double() - want).abs().max()) < 0.02 * float(want.abs().max())
