"""The one-pass draw against its reference, the exact law, and itself in other batches."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tsdfm import kernels
from tsdfm.flow.draw import draw, draw_other
from tsdfm.kernels.draw import Drawn, one_pass, reference

draw_triton = pytest.importorskip("tsdfm.kernels.draw_triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
INF = math.inf


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(DEVICE)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def launched(*args: object, **more: object) -> Drawn:
    with kernels.forced("draw"):
        return one_pass(*args, **more)  # type: ignore[arg-type]


def inputs(rows: int, columns: int, k: int, size: float = 3.0, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    z = (noise(rows, seed=1) * (columns + 1)).long()  # [MASK] among them
    beta = (0.5 + noise(rows, k, seed=2)).float()
    return [size * normal(rows, columns, dtype=dtype), z, beta, noise(rows, k, seed=3), noise(rows, seed=4)]


@pytest.mark.parametrize("columns", [2, 5, 300, 1024, 1025, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_the_reference(columns: int, dtype: torch.dtype) -> None:
    logits, z, beta, u, u_fresh = inputs(12, columns, 3, dtype=dtype)
    logits = logits.to(dtype)
    mine = launched(logits, z, beta, u, u_fresh, stats=True)
    theirs = reference(logits.double(), z, beta.double(), u, u_fresh, stats=True)
    assert (mine.tokens == theirs.tokens).double().mean() > 0.94  # a boundary may move by 10⁻⁷ of the mass
    assert (mine.tokens != z[:, None]).all()
    for name in ("p_z", "p_other", "lse", "entropy", "confidence"):
        torch.testing.assert_close(getattr(mine, name), getattr(theirs, name), rtol=3e-6, atol=3e-6)
    small = theirs.p_other < 0.1
    torch.testing.assert_close(mine.p_other[small], theirs.p_other[small], rtol=3e-5, atol=0)
    assert torch.equal(mine.top, theirs.top)  # type: ignore[arg-type]
    assert (mine.fresh != theirs.fresh).sum() <= 1


def test_a_large_vocabulary() -> None:
    logits, z, beta, u, u_fresh = inputs(3, 50257, 2)
    mine = launched(logits, z, beta, u, u_fresh, stats=True)
    theirs = reference(logits.double(), z, beta.double(), u, u_fresh, stats=True)
    assert (mine.tokens - theirs.tokens).abs().max() <= 2
    assert (mine.tokens == theirs.tokens).double().mean() > 0.6
    torch.testing.assert_close(mine.entropy, theirs.entropy, rtol=1e-5, atol=0)


@pytest.mark.parametrize(("columns", "size", "dtype"), [(300, 1.0, torch.float32), (2600, 8.0, torch.bfloat16)])
def test_near_temperatures(columns: int, size: float, dtype: torch.dtype) -> None:
    """Navigate's temperatures, and a row with one far from the others: the reference's odds to float32's precision."""
    logits, z, _, u, _ = inputs(4, columns, 6, size, dtype)
    warmth = torch.tensor([0.8, 1.2, 1.0, 1.0], dtype=torch.float64)[:, None] * torch.linspace(0.7, 1.3, 6).double()
    warmth[3, 0] = 0.2
    beta = (1.0 / warmth).float().to(DEVICE)
    mine, theirs = launched(logits, z, beta, u), reference(logits.double(), z, beta.double(), u)
    gap = ((mine.p_z / mine.p_other) / (theirs.p_z / theirs.p_other) - 1).abs().nan_to_num(0.0)
    assert gap.max() < 5e-7
    assert (mine.tokens != theirs.tokens).sum() <= 1


def test_near_temperatures_and_extreme_rows() -> None:
    logits = torch.full((5, 1300), -INF, device=DEVICE)
    logits[1, 1290] = 3.0
    logits[2, :4] = torch.tensor([300.0, 0.0, -300.0, -3e38])
    logits[3] = -1e4
    logits[4] = torch.linspace(-90, 0, 1300)
    z_all, u = torch.full((5,), 1, device=DEVICE), noise(5, 5, seed=12)
    beta = (1.0 / torch.linspace(0.7, 1.3, 5)).expand(5, 5).contiguous().to(DEVICE)
    mine, theirs = launched(logits, z_all, beta, u), reference(logits.double(), z_all, beta.double(), u)
    assert torch.equal(mine.tokens, theirs.tokens)
    torch.testing.assert_close(mine.p_other, theirs.p_other, rtol=1e-6, atol=0)
    torch.testing.assert_close(mine.p_z, theirs.p_z, rtol=1e-6, atol=1e-300)


def test_stratified_draws_of_navigation() -> None:
    """As below, for the hottest and the coldest of Navigate's candidates."""
    rows, columns, z = 24, 1500, 7
    logits = 2 * normal(1, columns)
    u = ((torch.arange(rows, dtype=torch.float64) + 0.5) / rows).to(DEVICE)
    z_all, beta = torch.full((rows,), z, device=DEVICE), 1.0 / torch.linspace(0.7, 1.3, 5, device=DEVICE)
    lots = u[:, None].expand(-1, 5)
    found = launched(logits, z_all, beta.expand(rows, 5), lots, at=torch.zeros_like(z_all))
    for k in (0, 4):
        weights = (beta[k].double() * logits.double()[0]).index_fill(0, torch.tensor([z], device=DEVICE), -INF)
        counts = torch.bincount(found.tokens[:, k], minlength=columns)
        assert (counts - rows * weights.softmax(-1)).abs().max() <= 1.01


def test_stratified_uniforms_reproduce_the_law() -> None:
    """With u on an even grid the counts are n·p to within one: the law of the draw itself, not of random counts."""
    rows, columns, z = 120, 600, 7
    logits = 2 * normal(1, columns)
    u = ((torch.arange(rows, dtype=torch.float64) + 0.5) / rows).to(DEVICE)
    z_all = torch.full((rows,), z, device=DEVICE)
    found = launched(
        logits, z_all, torch.full((rows, 1), 0.8, device=DEVICE), u[:, None], u, at=torch.zeros_like(z_all)
    )
    plain = torch.bincount(found.fresh, minlength=columns)  # type: ignore[arg-type]
    assert (plain - rows * logits.double().softmax(-1)[0]).abs().max() <= 1.01
    others = (0.8 * logits.double()[0]).index_fill(0, torch.tensor([z], device=DEVICE), -INF).softmax(-1)
    counts = torch.bincount(found.tokens[:, 0], minlength=columns)
    assert counts[z] == 0
    assert (counts - rows * others).abs().max() <= 1.01


def test_chi_square_of_random_uniforms() -> None:
    rows, k, columns = 50, 5, 6
    logits = normal(1, columns, dtype=torch.bfloat16)
    zeros = torch.zeros(rows, dtype=torch.int64, device=DEVICE)
    none = torch.full((rows,), columns, device=DEVICE)
    found = launched(logits, none, torch.ones(rows, k, device=DEVICE), noise(rows, k, seed=9), at=zeros)
    expected = rows * k * logits.double().softmax(-1)[0]
    counts = torch.bincount(found.tokens.flatten(), minlength=columns)
    chi = ((counts - expected) ** 2 / expected).sum().item()
    assert chi < 5 + 4 * math.sqrt(2 * 5)
    assert found.p_other.eq(1).all()


def test_rare_tokens_keep_their_share() -> None:
    """5 000 tokens of probability 2·10⁻⁹ each beside one that has the rest, in its own block and in others."""
    columns = 5001
    logits = torch.full((1, columns), -20.0, device=DEVICE)
    logits[0, 0] = 0.0
    mass = 5000 * math.exp(-20.0) / (1 + 5000 * math.exp(-20.0))
    rows, k = 16, 5
    inside, beta = noise(rows, k), torch.ones(rows, k, device=DEVICE)
    zeros, none = torch.zeros(rows, dtype=torch.int64, device=DEVICE), torch.full((rows,), columns, device=DEVICE)
    found = launched(logits, none, beta, 1.0 - mass * inside, at=zeros)
    expected = 1 + (1.0 - inside) * 5000
    # block 0's float32 sum is 1 to 6·10⁻⁸, 30 tokens' worth: tokens may shift by that, none is out of reach
    assert (found.tokens.double() - expected).abs().max() < 64
    assert len(found.tokens.unique()) > 75
    without = launched(logits, zeros, beta, inside, at=zeros)
    assert (without.tokens.double() - 1 - 5000 * inside).abs().max() < 2  # z out of the way: fine again
    torch.testing.assert_close(without.p_other, torch.full_like(without.p_other, mass), rtol=1e-5, atol=0)


def test_extreme_rows() -> None:
    logits = torch.tensor(
        [[-INF] * 4, [-INF, 3.0, -INF, -INF], [300.0, 0.0, -300.0, -INF], [1e4, -1e4, 0.0, 0.0]], device=DEVICE
    )
    for z in (1, 4):
        z_all, u = torch.full((4,), z, device=DEVICE), torch.full((4, 1), 0.6, dtype=torch.float64, device=DEVICE)
        mine = launched(logits, z_all, torch.ones(4, 1, device=DEVICE), u, u[:, 0], stats=True)
        theirs = reference(logits, z_all, torch.ones(4, 1, device=DEVICE), u, u[:, 0], stats=True)
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-12)


def test_ends_of_u_and_zero_weights() -> None:
    logits = torch.tensor([[-INF, 0.0, -INF, 1.0, -INF]], device=DEVICE)
    ends = torch.tensor([0.0, 1.0 - 2.0**-53, 0.1, 0.9], dtype=torch.float64, device=DEVICE)
    with kernels.forced("draw"):
        assert draw(logits.expand(4, 5).contiguous(), ends).tolist() == [1, 3, 1, 3]
        other = draw_other(logits.expand(4, 5).contiguous(), torch.full((4,), 3, device=DEVICE), ends)
    assert other.tokens.tolist() == [1, 1, 1, 1]


def test_a_row_depends_on_itself_alone() -> None:
    logits, z, beta, u, u_fresh = inputs(12, 2100, 4)
    whole = launched(logits, z, beta, u, u_fresh, stats=True)
    pick = torch.tensor([11, 3, 3, 0], device=DEVICE)
    part = launched(logits, z[pick], beta[pick], u[pick], u_fresh[pick], at=pick, stats=True)
    for a, b in zip(whole, part, strict=True):
        assert torch.equal(a[pick], b)  # type: ignore[index]


def test_rows_not_needed_and_padded_columns() -> None:
    logits, z, beta, u, u_fresh = inputs(6, 70, 2)
    need = torch.tensor([True, False, True, True, False, False], device=DEVICE)
    wide = torch.full((6, 128), 99.0, device=DEVICE)
    wide[:, :70] = logits
    mine = launched(wide[:, :70], z, beta, u, u_fresh, need=need, stats=True)
    theirs = reference(logits, z, beta, u, u_fresh, need=need, stats=True)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert torch.equal(mine.tokens[~need], z[~need, None].expand(-1, 2))


def test_exponentials_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    args = inputs(8, 1500, 3)
    plain = launched(*args)
    monkeypatch.setattr(draw_triton, "POLYNOMIAL", 2)
    by_hand = launched(*args)
    torch.testing.assert_close(by_hand.p_other, plain.p_other, rtol=1e-6, atol=0)
    assert (by_hand.tokens != plain.tokens).sum() <= 1
