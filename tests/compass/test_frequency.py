import numpy as np
import pytest
import torch

from tsdfm.compass.frequency import frequency_bins, uniform_other
from tsdfm.errors import UserError


@pytest.mark.parametrize("bins", [1, 4, 16, 64])
def test_bins_hold_what_they_say(bins):
    rng = np.random.default_rng(0)
    counts = np.floor(rng.pareto(0.7, 500) * 3).astype(np.int64)
    made = frequency_bins(counts, bins)
    assert sorted(made.members.tolist()) == list(range(500))
    assert int(made.size.sum()) == 500
    assert int(made.size.min()) >= 2
    for token in range(500):
        b = int(made.bin_of[token])
        assert made.low[b] <= counts[token] <= made.high[b]
        assert int(made.members[made.start[b] + made.place[token]]) == token
    assert all(made.high[b] < made.low[b + 1] for b in range(len(made.low) - 1))
    assert 1 <= len(made.low) <= bins + 1
    if bins >= 4:
        assert made.high[0] == 0  # unseen tokens are among themselves


def test_bins_have_equal_width_in_the_logarithm():
    counts = np.array([1, 3, 12, 14, 100, 120, 900, 1000])
    made = frequency_bins(counts, 3)  # edges at 1, 10, 100, 1000
    assert made.low == (1, 12, 100)
    assert made.high == (3, 14, 1000)


def test_lonely_tokens_join_a_neighbour():
    made = frequency_bins(np.array([1, 1, 50, 100_000]), 10)
    assert made.low == (1, 50)
    assert made.high == (1, 100_000)
    assert frequency_bins(np.array([5, 7]), 16).high == (7,)
    with pytest.raises(UserError, match="two tokens"):
        frequency_bins(np.array([5]), 3)


def test_another_token_is_never_the_same_and_all_others_alike():
    made = frequency_bins(np.array([0, 0, 0, 0, 0, 9, 9, 9]), 2)
    u = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    for token, others in ((2, [0, 1, 3, 4]), (7, [5, 6])):
        drawn = torch.bincount(made.other(torch.full((4000,), token), u), minlength=8)
        assert drawn.nonzero().view(-1).tolist() == others
        assert drawn[others].max() - drawn[others].min() <= 1
    drawn = torch.bincount(uniform_other(torch.full((4000,), 3), 5, u), minlength=5)
    assert drawn.tolist() == [1000, 1000, 1000, 0, 1000]
    almost_one = torch.full((8,), 1.0 - 2.0**-53, dtype=torch.float64)
    assert (uniform_other(torch.arange(8), 8, almost_one) < 8).all()
