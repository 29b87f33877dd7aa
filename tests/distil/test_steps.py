"""Step sizes, times and which rows take a large step."""

import pytest
import torch

from tsdfm.distil.times import GRID, draw_steps, is_large, large_share, weights_of
from tsdfm.errors import UserError
from tsdfm.flow import RowNoise


def test_weights() -> None:
    inverse = weights_of("inverse")
    assert torch.allclose(inverse * 2047, 2.0 ** torch.arange(11, dtype=torch.float64))
    assert large_share(inverse, None) == pytest.approx(1023 / 2047)
    assert large_share(weights_of("uniform"), None) == pytest.approx(10 / 11)
    assert large_share(inverse, 0.25) == 0.25
    given = weights_of("inverse", (0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 3))
    assert given.tolist() == pytest.approx([0, 1 / 6, 1 / 6, 1 / 6, *[0] * 6, 0.5])
    for wrong in ((1.0,), (-1.0, *[1.0] * 10), (0.0,) * 11):
        with pytest.raises(UserError, match="level_weights"):
            weights_of("inverse", wrong)
    with pytest.raises(UserError, match="share"):
        large_share(weights_of("", (*[0.0] * 10, 1.0)), 0.5)


@pytest.mark.parametrize("share", [0.0, 1 / 3, 1023 / 2047, 0.5, 0.75, 1.0])
def test_large_rows_are_spread_evenly(share: float) -> None:
    rows = torch.arange(10_000_000, 10_000_000 + 3000)
    large = is_large(rows, share)
    assert int(large.sum()) == pytest.approx(3000 * share, abs=1)
    for batch in (4, 8, 30):
        counts = (
            large.view(-1, batch).sum(-1)
            if 3000 % batch == 0
            else large[: 3000 // batch * batch].view(-1, batch).sum(-1)
        )
        assert counts.max() - counts.min() <= 1
        assert abs(counts.double().mean() - batch * share) < 0.1
    shuffled = rows[torch.randperm(3000, generator=torch.Generator().manual_seed(0))]
    assert torch.equal(is_large(shuffled, share), large[shuffled - 10_000_000])


def test_thirds_are_one_in_three_rows() -> None:
    assert is_large(torch.arange(12), 1 / 3).view(4, 3).sum(-1).tolist() == [1, 1, 1, 1]


def test_the_law_of_t_and_h() -> None:
    rows = torch.arange(40_000)
    large = is_large(rows, 0.75)
    weights = weights_of("", (2, 0, 1, 0, 0, 1, 0, 0, 0, 0, 1))
    t, h = draw_steps(large, weights, RowNoise(0, rows))
    assert torch.equal(h[~large], torch.full_like(h[~large], 1 / 1024))
    for level, share in ((0, 0.5), (2, 0.25), (5, 0.25)):
        found = (h[large] == 2.0**-level).double().mean().item()
        assert found == pytest.approx(share, abs=4 * (share * (1 - share) / 30_000) ** 0.5)
    assert set(h[large].tolist()) == {1.0, 1 / 4, 1 / 32}
    assert torch.equal(t * GRID, (t * GRID).round())
    assert bool(((t >= 0) & (t + h <= 1)).all())
    assert bool((t[h == 1.0] == 0).all())
    quarter = t[h == 0.25] * GRID  # 0 … 768, all alike: both ends occur, and the mean is the middle
    assert (quarter.min(), quarter.max()) == (0, 768)
    assert quarter.mean().item() == pytest.approx(384, abs=4 * 768 / 12**0.5 / len(quarter) ** 0.5)
    small = t[~large] * GRID
    assert (small.min(), small.max()) == (0, 1023)


def test_a_row_has_its_step_whatever_its_batch() -> None:
    rows = torch.arange(64)
    large, weights = is_large(rows, 0.5), weights_of("uniform")
    t, h = draw_steps(large, weights, RowNoise(3, rows))
    some = torch.tensor([40, 3, 17])
    t_some, h_some = draw_steps(large[some], weights, RowNoise(3, rows[some]))
    assert torch.equal(t[some], t_some)
    assert torch.equal(h[some], h_some)
