"""The row noise: uniform, independent across rows, draws, positions, seeds and streams, and the same in any batch."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tsdfm.flow import noise as noise_room
from tsdfm.flow.noise import RowNoise, mix64, uniform


def reference_mix(x: int) -> int:
    """splitmix64's finaliser in Python's unbounded integers."""
    word = (1 << 64) - 1
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & word
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & word
    return x ^ (x >> 31)


def test_mix64_is_splitmix64() -> None:
    inputs = [0, 1, 2, 12345, (1 << 63) - 1, -1, -(1 << 63)]
    mixed = mix64(torch.tensor(inputs, dtype=torch.int64)).tolist()
    assert [m % (1 << 64) for m in mixed] == [reference_mix(i % (1 << 64)) for i in inputs]


def chi_square(counts: torch.Tensor) -> float:
    """Standardised: about a unit normal when all cells are equally likely."""
    expected = counts.sum().item() / counts.numel()
    value = ((counts - expected) ** 2 / expected).sum().item()
    freedom = counts.numel() - 1
    return (value - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_uniform_on_the_unit_interval(dtype: torch.dtype) -> None:
    u = RowNoise(3, torch.arange(500)).uniform((500, 2000), dtype)
    assert u.dtype == dtype
    assert u.min().item() >= 0.0
    assert u.max().item() < 1.0
    assert abs(chi_square(torch.histc(u.double(), 1000, 0, 1))) < 5
    assert abs(u.double().mean().item() - 0.5) < 5 / math.sqrt(12 * u.numel())


def test_every_one_of_the_53_bits_is_fair() -> None:
    u = RowNoise(9, torch.arange(1000)).uniform((1000, 200))
    bits = (u * 2.0**53).to(torch.int64)
    for place in range(53):
        ones = ((bits >> place) & 1).double().mean().item()
        assert abs(ones - 0.5) < 5 * 0.5 / math.sqrt(bits.numel()), place


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    """Times √n: about a unit normal for independent numbers."""
    a, b = a.flatten() - 0.5, b.flatten() - 0.5
    return (a * b).mean().item() * 12 * math.sqrt(a.numel())


def pairs() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    rows, shape = torch.arange(400), (400, 500)
    noise = RowNoise(0, rows)
    first, second = noise.uniform(shape), noise.uniform(shape)
    return {
        "neighbouring rows": (first[1:], first[:-1]),
        "rows 64 apart": (first[64:], first[:-64]),
        "neighbouring positions": (first[:, 1:], first[:, :-1]),
        "neighbouring draws": (first, second),
        "draw and position": (first[:, 1:], second[:, :-1]),
        "row and position": (first[1:, :-1], first[:-1, 1:]),
        "neighbouring seeds": (first, RowNoise(1, rows).uniform(shape)),
        "seed and row": (first[1:], RowNoise(1, rows).uniform(shape)[:-1]),
        "seed and its negative": (RowNoise(5, rows).uniform(shape), RowNoise(-5, rows).uniform(shape)),
        "streams": (first, RowNoise(0, rows, stream=1).uniform(shape)),
        "stream and seed swapped": (RowNoise(1, rows, 2).uniform(shape), RowNoise(2, rows, 1).uniform(shape)),
    }


@pytest.mark.parametrize("name", list(pairs()))
def test_independent(name: str) -> None:
    a, b = pairs()[name]
    assert abs(correlation(a, b)) < 5
    # and jointly uniform: 16 × 16 cells of the unit square
    cells = (a * 16).long() * 16 + (b * 16).long()
    assert abs(chi_square(torch.bincount(cells.flatten(), minlength=256).double())) < 5
    assert not torch.equal(a, b)


def test_no_number_twice() -> None:
    noise = RowNoise(0, torch.arange(1000))
    everything = torch.cat([noise.uniform((1000, 100)) for _ in range(4)])
    assert everything.unique().numel() == everything.numel()  # 4·10⁵ of 2⁵³: a collision has probability 10⁻⁵


@given(
    seed=st.integers(-(2**40), 2**40),
    rows=st.lists(st.integers(0, 2**40), min_size=1, max_size=6, unique=True),
    length=st.integers(1, 5),
    draws=st.integers(1, 3),
)
def test_a_row_does_not_know_its_batch(seed: int, rows: list[int], length: int, draws: int) -> None:
    together = RowNoise(seed, torch.tensor(rows))
    reversed_ = RowNoise(seed, torch.tensor(rows[::-1]))
    alone = [RowNoise(seed, torch.tensor([row])) for row in rows]
    for _ in range(draws):
        u = together.uniform((len(rows), length))
        assert torch.equal(u.flip(0), reversed_.uniform((len(rows), length)))
        assert torch.equal(u, torch.cat([a.uniform((1, length)) for a in alone]))


def test_a_position_does_not_know_the_length() -> None:
    rows = torch.arange(3)
    long, short = RowNoise(0, rows).uniform((3, 9, 2)), RowNoise(0, rows).uniform((3, 4, 2))
    assert torch.equal(long[:, :4], short)


def test_select_continues_where_the_whole_stands() -> None:
    noise = RowNoise(4, torch.arange(10, 16), stream=2)
    noise.uniform((6, 3))
    part = noise.select(torch.tensor([5, 1]))
    assert torch.equal(part.uniform((2, 3)), noise.uniform((6, 3))[[5, 1]])


def test_wrong_number_of_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="2 rows, 3"):
        RowNoise(0, torch.arange(2)).uniform((3, 4))


def test_a_generator_will_do() -> None:
    made = [uniform(torch.Generator().manual_seed(s), (2, 3), torch.device("cpu")) for s in (1, 1, 2)]
    assert made[0].dtype == torch.float64
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


@pytest.mark.parametrize("shape", [(), (1,), (2,), (5, 2), (3, 0)])
def test_few_numbers_are_the_same_bits(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """What numpy makes on the host is what torch makes on any device."""
    numbers = torch.tensor([0, 1, 7, (1 << 63) - 1, -1, -(1 << 63), 123456789012345])
    for rows in (numbers, numbers[::2], numbers[:0]):
        for seed, stream, draws in ((0, 0, 0), (-5, 3, 1), ((1 << 63) - 1, 1 << 20, 1 << 22)):
            mine = RowNoise(seed, rows, stream, draws).uniform((len(rows), *shape))
            few = noise_room.few_uniforms(rows, noise_room.salt_of(seed, stream), draws << 40, (len(rows), *shape))
            with monkeypatch.context() as many:
                many.setattr(noise_room, "FEW", -1)
                theirs = RowNoise(seed, rows, stream, draws).uniform((len(rows), *shape))
            assert mine.dtype == few.dtype == theirs.dtype
            assert mine.shape == theirs.shape
            assert torch.equal(mine, theirs)
            assert torch.equal(few, theirs)
