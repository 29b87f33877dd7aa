"""Draws: equal to an exact inverse CDF, sound for 50 257 columns, exact at the edges, chunked, row-wise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from tsdfm.errors import UserError
from tsdfm.flow.draw import draw, draw_other, shape_logits
from tsdfm.kernels import inverse

INF = math.inf


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def reference_draw(logits: torch.Tensor, u: torch.Tensor) -> list[int]:
    """Inverse CDF in the longest floats numpy has, one row at a time."""
    tokens = []
    for row, point in zip(logits.double().numpy(), u.numpy(), strict=True):
        running = np.cumsum(np.exp((row - row.max()).astype(np.longdouble)))
        tokens.append(int(np.searchsorted(running, np.longdouble(point) * running[-1], side="right")))
    return tokens


@pytest.mark.parametrize("columns", [1, 2, 3, 5, 63, 64, 65, 300, 1023, 1024, 1025, 1500, 4096, 8191, 50257])
def test_equals_the_exact_inverse_cdf(columns: int) -> None:
    logits, u = 3 * normal(40, columns, seed=columns), noise(40, seed=columns)
    assert draw(logits, u).tolist() == reference_draw(logits, u)


@pytest.mark.parametrize("columns", [300, 50257])
def test_float32_and_bfloat16_agree_with_float64(columns: int) -> None:
    logits, u = 2 * normal(60, columns, dtype=torch.float32), noise(60)
    exact = draw(logits.double(), u)
    assert (draw(logits, u) == exact).double().mean() > 0.95  # a boundary may move by 10⁻⁷ of the mass
    rounded = logits.bfloat16()
    assert torch.equal(draw(rounded, u), draw(rounded.float(), u))


def test_rare_tokens_of_a_large_vocabulary_keep_their_share() -> None:
    """Fact 9: 50 256 tokens of probability 2·10⁻⁹ each are told apart, and none is lost (float32 has 6·10⁻⁸)."""
    columns = 50257
    logits = torch.full((1, columns), -20.0)
    logits[0, 0] = 0.0
    mass = (columns - 1) * math.exp(-20.0) / (1 + (columns - 1) * math.exp(-20.0))
    inside = noise(200)
    u = 1.0 - mass * inside  # all in the upper tail: the j-th rare token sits at a share j/(V − 1) of it
    tokens = draw(logits.expand(200, columns), u)
    expected = 1 + (1.0 - inside) * (columns - 1)
    assert (tokens.double() - expected).abs().max() < 2
    assert draw(logits.expand(50, columns), (1.0 - mass) * noise(50)).eq(0).all()


def test_stratified_uniforms_reproduce_the_law() -> None:
    """With u on an even grid, token counts are n·p to within one."""
    rows, columns = 4000, 1500  # two-level
    logits = 2 * normal(1, columns)
    u = (torch.arange(rows, dtype=torch.float64) + 0.5) / rows
    counts = torch.bincount(draw(logits.expand(rows, columns), u), minlength=columns)
    assert (counts - rows * logits.softmax(-1)[0]).abs().max() <= 1.0


def test_zero_weight_is_never_drawn_and_the_ends_of_u_are_safe() -> None:
    logits = torch.tensor([-INF, 0.0, -INF, 1.0, -INF])
    ends = torch.tensor([0.0, 1.0 - 2.0**-53, 0.1, 0.9], dtype=torch.float64)
    assert draw(logits.expand(4, 5), ends).tolist() == [1, 3, 1, 3]
    wide = torch.full((2, 3000), -INF)
    wide[:, 2999] = 5.0
    assert draw(wide, ends[:2]).tolist() == [2999, 2999]


@pytest.mark.parametrize("columns", [1, 4, 2000])
def test_a_row_of_minus_infinity_is_uniform(columns: int) -> None:
    u = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    empty = torch.full((1, columns), -INF).expand(4000, columns)
    assert torch.equal(draw(empty, u), (u * columns).long())
    if columns > 1:
        z = torch.full((4000,), 1)
        other = draw_other(empty, z, u)
        assert other.p_z.allclose(torch.tensor(1.0 / columns, dtype=torch.float64), rtol=1e-14)
        counts = torch.bincount(other.tokens, minlength=columns)
        assert counts[1] == 0
        assert (counts - 4000 / (columns - 1))[torch.arange(columns) != 1].abs().max() <= 1.0
    masked = draw_other(empty, torch.full((4000,), columns), u)
    assert torch.equal(masked.tokens, (u * columns).long())
    assert masked.p_other.eq(1).all()


@pytest.mark.parametrize("columns", [2, 5, 300, 1025, 5000])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_draw_other_is_the_law_without_z(columns: int, dtype: torch.dtype) -> None:
    logits, u = 3 * normal(50, columns, dtype=dtype), noise(50)
    z = (noise(50, seed=1) * (columns + 1)).long()  # [MASK] among them
    other = draw_other(logits, z, u)
    p = logits.double().softmax(-1)
    p = torch.cat([p, torch.zeros(50, 1, dtype=torch.float64)], -1).gather(-1, z[:, None])[:, 0]
    # whole-number weights resolve 2⁻⁶²·V of the largest
    tight = max(1e-14, 2.0**-61 * columns**2) if dtype == torch.float64 else 1e-6
    assert torch.allclose(other.p_z, p, rtol=tight, atol=0)
    assert torch.allclose(other.p_z + other.p_other, torch.ones(50, dtype=torch.float64), rtol=1e-15)
    assert (other.tokens != z).all()
    without = torch.cat([logits, torch.zeros(50, 1, dtype=dtype)], -1).scatter(-1, z[:, None], -INF)[:, :columns]
    assert torch.equal(other.tokens, draw(without, u))


@pytest.mark.parametrize("gap", [10.0, 40.0, 200.0, 700.0])
def test_no_cancellation_where_z_is_almost_certain(gap: float) -> None:
    logits = torch.tensor([[gap, 0.0, math.log(3.0)]], dtype=torch.float64).expand(400, 3)
    u = (torch.arange(400, dtype=torch.float64) + 0.5) / 400
    other = draw_other(logits, torch.zeros(400, dtype=torch.int64), u)
    assert other.p_other[0].item() == pytest.approx(4 * math.exp(-gap) / (1 + 4 * math.exp(-gap)), rel=1e-12)
    assert torch.bincount(other.tokens, minlength=3).tolist() == [0, 100, 300]  # the draw stays fine all the same
    almost_never = draw_other(-logits, torch.zeros(400, dtype=torch.int64), u)
    assert almost_never.p_z[0].item() == pytest.approx(math.exp(-gap) / (4 / 3 + math.exp(-gap)), rel=1e-12)


def test_where_only_z_is_possible() -> None:
    u = noise(3)
    certain = torch.tensor([[-INF, 2.0, -INF]]).expand(3, 3)
    other = draw_other(certain, torch.tensor([1, 0, 3]), u)
    assert other.tokens.tolist() == [1, 1, 1]
    assert other.p_z.tolist() == [1.0, 0.0, 0.0]
    assert other.p_other.tolist() == [0.0, 1.0, 1.0]
    for value in (0.0, -INF):  # a vocabulary of one token
        other = draw_other(torch.full((2, 1), value), torch.tensor([0, 1]), u[:2])
        assert other.tokens.tolist() == [0, 0]
        assert other.p_other.tolist() == [0.0, 1.0]


def test_shapes_and_no_rows() -> None:
    logits, u = normal(2, 3, 4, 7), noise(2, 3, 4)
    assert draw(logits, u).shape == (2, 3, 4)
    assert torch.equal(draw(logits, u)[1, 2], draw(logits[1, 2], u[1, 2]))
    assert draw(logits[:0], u[:0]).shape == (0, 3, 4)
    assert draw_other(normal(0, 4, 2000), torch.zeros(0, 4, dtype=torch.int64), noise(0, 4)).p_z.shape == (0, 4)
    with pytest.raises(UserError, match="at least one column"):
        draw(torch.zeros(3, 0), noise(3))


def test_inputs_are_left_alone() -> None:
    logits, z, u = normal(5, 9), torch.arange(5), noise(5)
    before = logits.clone()
    draw(logits, u), draw_other(logits, z, u), shape_logits(logits, 0.5, 0.8)
    assert torch.equal(logits, before)


class Largest(TorchDispatchMode):
    """Remembers the largest tensor made while it is on (views of `known` do not count)."""

    def __init__(self, known: torch.Tensor) -> None:
        super().__init__()
        self.known, self.numel = known.untyped_storage().data_ptr(), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for out in made if isinstance(made, (tuple, list)) else [made]:
            if isinstance(out, torch.Tensor) and out.untyped_storage().data_ptr() != self.known:
                self.numel = max(self.numel, out.numel())
        return made


@pytest.mark.parametrize("columns", [100, 3000])
def test_chunks_change_nothing_and_bound_the_memory(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    logits, u = normal(8, 10, columns, dtype=torch.float32), noise(8, 10)
    z = (noise(8, 10, seed=1) * columns).long()
    whole = (draw(logits, u), *draw_other(logits, z, u), shape_logits(logits, 0.7, 0.9))
    monkeypatch.setattr(inverse, "CHUNK_CPU", 3 * columns)
    with Largest(logits) as largest:
        parts = (draw(logits, u), *draw_other(logits, z, u))
    assert largest.numel <= max(3 * columns, u.numel())
    for a, b in zip(whole, (*parts, shape_logits(logits, 0.7, 0.9)), strict=True):
        assert torch.equal(a, b)


@given(data=st.data(), rows=st.integers(1, 5), columns=st.integers(1, 6))
def test_any_logits_give_a_possible_token(data: st.DataObject, rows: int, columns: int) -> None:
    value = st.one_of(st.floats(-80, 80), st.just(-INF))
    logits = torch.tensor(
        data.draw(st.lists(st.lists(value, min_size=columns, max_size=columns), min_size=rows, max_size=rows))
    )
    u = torch.tensor(
        data.draw(st.lists(st.floats(0, 1, exclude_max=True), min_size=rows, max_size=rows)), dtype=torch.float64
    )
    z = torch.tensor(data.draw(st.lists(st.integers(0, columns), min_size=rows, max_size=rows)))
    tokens, other = draw(logits, u), draw_other(logits, z, u)
    empty = logits.isneginf().all(-1)
    for drawn in (tokens, other.tokens):
        inside = drawn < columns
        picked = logits.gather(-1, drawn.clamp(max=columns - 1)[:, None])[:, 0]
        assert (inside & (empty | ~picked.isneginf()) | (other.p_other == 0)).all()
    assert ((other.tokens != z) | (other.p_other == 0)).all()
    assert torch.allclose(other.p_z + other.p_other, torch.ones(rows, dtype=torch.float64))


def reference_top_p(row: list[float], temperature: float, top_p: float) -> set[int]:
    p = torch.tensor(row, dtype=torch.float64).div(temperature).softmax(-1).tolist()
    kept, mass = set(), 0.0
    for token in sorted(range(len(p)), key=lambda j: (-p[j], j)):
        kept.add(token)
        mass += p[token]
        if mass >= top_p:
            break
    return kept


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("top_p", [1e-9, 0.31, 0.77, 0.95])
def test_top_p_keeps_the_token_that_crosses(temperature: float, top_p: float) -> None:
    logits = normal(30, 11)
    shaped = shape_logits(logits, temperature, top_p)
    for before, after in zip(logits, shaped, strict=True):
        kept = set(torch.nonzero(~after.isneginf())[:, 0].tolist())
        assert kept == reference_top_p(before.tolist(), temperature, top_p)
    inside = ~shaped.isneginf()
    expected = (logits / temperature).masked_fill(~inside, -INF).softmax(-1)
    assert torch.allclose(shaped.softmax(-1), expected, rtol=1e-12)


def test_top_p_ties_go_by_id() -> None:
    shaped = shape_logits(torch.zeros(1, 8), 1.0, 0.5)
    assert torch.nonzero(~shaped[0].isneginf())[:, 0].tolist() == [0, 1, 2, 3]
    everything = shape_logits(torch.full((1, 4), -INF), 1.0, 0.4)  # all −inf counts as uniform
    assert torch.nonzero(~everything[0].isneginf())[:, 0].tolist() == [0, 1]


def test_temperature() -> None:
    logits = normal(6, 5)
    assert shape_logits(logits) is logits
    assert torch.allclose(shape_logits(logits, 0.5).softmax(-1), (2 * logits).softmax(-1))
    greedy = shape_logits(torch.tensor([[1.0, 3.0, 3.0], [-INF, -INF, 0.0]]), 0.0)
    assert (greedy.softmax(-1)).tolist() == [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    cold = shape_logits(torch.tensor([[1e4, 9e3, -INF]]), 1e-38)  # no overflow into NaN
    assert cold.softmax(-1).tolist() == [[1.0, 0.0, 0.0]]
    empty = shape_logits(torch.full((1, 3), -INF), 0.5)
    assert empty.isneginf().all()
    assert shape_logits(logits.bfloat16(), 0.7).dtype == torch.float32


@pytest.mark.parametrize(
    ("temperature", "top_p"), [(-1.0, 1.0), (math.nan, 1.0), (INF, 1.0), (1.0, 0.0), (1.0, 1.1), (1.0, math.nan)]
)
def test_bad_dials(temperature: float, top_p: float) -> None:
    with pytest.raises(UserError):
        shape_logits(torch.zeros(1, 3), temperature, top_p)
