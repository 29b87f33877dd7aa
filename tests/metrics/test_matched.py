"""Perplexity at matched entropy: hand-computed interpolation and ratios, and the bootstrap around them."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from tsdfm.metrics import matched
from tsdfm.metrics.matched import Curves, PooledEntropy, Sweep, compare, interval_of, mean_entropy
from tsdfm.metrics.ngrams import NgramPool

E = math.e
Points = list[tuple[float, float]]
CONTROL = [(3.0, E**3), (1.0, E)]  # log ppl = H on 1 to 3; the order of points does not matter


def curves(points: Points) -> Curves:
    """One curve of points (entropy, perplexity)."""
    entropy, ppl = torch.tensor(points, dtype=torch.float64).T[:, None]
    return Curves.of(entropy, ppl.log())


def known(found: torch.Tensor) -> float | None:
    return None if bool(found.isnan()) else float(found)


def log_ppl_at(points: Points, entropy: float) -> float | None:
    return known(curves(points).at(torch.tensor([[entropy]], dtype=torch.float64)))


def ratio_at(ppl: float, entropy: float, control: Points) -> float | None:
    other = log_ppl_at(control, entropy)
    return None if other is None else ppl / math.exp(other)


def overlap(points: Points, control: Points) -> tuple[float, ...]:
    return tuple(map(float, matched.overlap(curves(points), curves(control))))


def mean_ratio(points: Points, control: Points) -> float | None:
    return known(matched.mean_ratio(curves(points), curves(control)))


def test_log_perplexity_is_linear_between_neighbours_and_unknown_outside() -> None:
    bent = [(1.0, E), (2.0, E**5), (4.0, E**6)]
    assert log_ppl_at(bent, 1.0) == pytest.approx(1.0)
    assert log_ppl_at(bent, 1.25) == pytest.approx(2.0)
    assert log_ppl_at(bent, 2.0) == pytest.approx(5.0)
    assert log_ppl_at(bent, 3.0) == pytest.approx(5.5)
    assert log_ppl_at(bent, 0.999) is None
    assert log_ppl_at(bent, 4.001) is None
    assert log_ppl_at([(2.0, 7.0)], 2.0) == pytest.approx(math.log(7.0))
    assert log_ppl_at([(2.0, 7.0)], 2.1) is None


def test_points_of_one_entropy_become_their_mean() -> None:
    assert log_ppl_at([(1.0, 1.0), (2.0, E**2), (2.0, E**4)], 1.5) == pytest.approx(1.5)


def test_the_ratio_at_a_methods_own_entropy() -> None:
    assert ratio_at(E**1.5, 2.0, CONTROL) == pytest.approx(math.exp(-0.5))  # the control has e² there
    assert ratio_at(E**1.5, 3.5, CONTROL) is None


def test_the_ratio_over_the_overlap_is_the_mean_of_the_log_ratio() -> None:
    parallel = [(2.0, E), (4.0, E**3)]  # log ppl = H − 1 on 2 to 4
    assert overlap(parallel, CONTROL) == (2.0, 3.0)
    assert mean_ratio(parallel, CONTROL) == pytest.approx(math.exp(-1.0))
    steep = [(2.0, E), (4.0, E**5)]  # 2 H − 3: log ratio H − 3, from −1 to 0 over the overlap
    assert mean_ratio(steep, CONTROL) == pytest.approx(math.exp(-0.5))
    kinked = [(1.0, E), (2.0, E**4), (3.0, E**3)]  # log ratio 0 → 2 → 0: a knot inside the overlap counts
    assert mean_ratio(kinked, CONTROL) == pytest.approx(math.exp(1.0))
    assert mean_ratio([(3.0, E), (4.0, E)], CONTROL) is None  # they meet in a point only
    assert mean_ratio([(5.0, E), (6.0, E)], CONTROL) is None


def cells(ppl: torch.Tensor, entropies: list[float], factor: float = 1.0, geometric: bool = False) -> list[Sweep]:
    """A sweep at T = 0.9, 1.0, 1.1 whose texts have entropies around those given, log ppl linear in them."""
    out = []
    for temperature, centre in zip((0.9, 1.0, 1.1), entropies, strict=True):
        own = torch.full_like(ppl, centre)
        out.append(Sweep(temperature, factor * ppl * math.exp(centre), geometric, mean_entropy(own)))
    return out


def test_a_method_that_is_half_the_control_everywhere_is_so_with_a_tight_interval() -> None:
    ppl = torch.rand(40, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1.0
    found = compare(cells(ppl, [3.2, 3.5, 3.8], 0.5), cells(ppl, [3.0, 3.5, 4.0]), draws=50, seed=0)
    assert found.at_own_entropy == pytest.approx(0.5)
    assert found.over_overlap == pytest.approx(0.5)
    assert found.at_own_interval == pytest.approx((0.5, 0.5))  # the same texts are drawn of both: nothing is left over
    assert found.over_interval == pytest.approx((0.5, 0.5))
    assert found.span == pytest.approx((3.2, 3.8))


def test_the_bootstrap_covers_the_noise_of_texts() -> None:
    made = torch.Generator().manual_seed(1)
    one, two = (torch.empty(60, dtype=torch.float64).log_normal_(0.0, 0.5, generator=made) for _ in range(2))
    found = compare(cells(one, [3.0, 3.5, 4.0]), cells(two, [3.0, 3.5, 4.0]), draws=400, seed=0)
    assert found.at_own_interval is not None
    low, high = found.at_own_interval
    assert found.at_own_entropy == pytest.approx(float(one.mean() / two.mean()))
    assert low < 1.0 < high
    # the log of a ratio of means: its variance is the sum of both relative variances over n
    spread = math.sqrt(sum(float((x.std() / x.mean()) ** 2) for x in (one, two)) / 60)
    assert math.log(high / low) == pytest.approx(2 * 1.96 * spread, rel=0.25)


def test_outside_and_without_a_cell_at_temperature_one_nothing_is_said() -> None:
    ppl = torch.ones(8, dtype=torch.float64)
    found = compare(cells(ppl, [5.0, 5.1, 5.2]), cells(ppl, [3.0, 3.5, 4.0]), draws=10, seed=0)
    assert found.at_own_entropy is None
    assert found.at_own_interval is None
    assert found.over_overlap is None
    without = [cell for cell in cells(ppl, [3.0, 3.5, 4.0]) if cell.temperature != 1.0]
    assert compare(without, cells(ppl, [3.0, 3.5, 4.0]), draws=10, seed=0).at_own_entropy is None


def test_an_interval_needs_half_of_the_draws() -> None:
    nan = math.nan
    assert interval_of([1.0, nan, nan]) is None
    assert interval_of([nan, nan]) is None
    assert interval_of([3.0, 1.0, 2.0, nan]) == (1.0, 3.0)


def test_the_two_means_of_perplexity() -> None:
    ppl = torch.tensor([1.0, 100.0, torch.nan], dtype=torch.float64)
    flat = mean_entropy(torch.ones(3, dtype=torch.float64))
    for geometric, wanted in ((False, 50.5), (True, 10.0)):
        entropy, logs = Sweep(1.0, ppl, geometric, flat).draws(None)
        assert (float(entropy), float(logs.exp())) == (1.0, pytest.approx(wanted))


def test_pooled_entropy_is_that_of_the_metrics_and_its_draws_are_centred_on_it() -> None:
    made = torch.Generator().manual_seed(2)
    rows = [torch.randint(0, 6, (20,), generator=made) for _ in range(12)]
    entropy = PooledEntropy(rows)
    assert float(entropy(None)) == pytest.approx(NgramPool(rows, 2).entropy())
    picks = torch.randint(12, (30, 12), generator=made)
    assert float(entropy(picks).mean()) == pytest.approx(NgramPool(rows, 2).entropy())
    shift = entropy(picks)[0] - entropy(picks)[1]
    apart = NgramPool([rows[i] for i in picks[0]], 2).entropy() - NgramPool([rows[i] for i in picks[1]], 2).entropy()
    assert float(shift) == pytest.approx(apart)


def slow_log_ppl(points: Points, entropy: float) -> float | None:
    """One by one, in plain Python: (entropy, log ppl) in order, points of one entropy as their mean."""
    at = {h: [y for other, y in points if other == h] for h, _ in points}
    line = [(h, sum(at[h]) / len(at[h])) for h in sorted(at)]
    for (h0, y0), (h1, y1) in itertools.pairwise(line):
        if h0 <= entropy <= h1:
            return y0 + (y1 - y0) * (entropy - h0) / (h1 - h0)
    return None


def slow_mean_log_ratio(one: Points, two: Points) -> float | None:
    low, high = max(min(one)[0], min(two)[0]), min(max(one)[0], max(two)[0])
    if low >= high:
        return None
    area, knots = 0.0, sorted({low, high} | {h for h, _ in (*one, *two) if low < h < high})
    for left, right in itertools.pairwise(knots):
        ends = [(slow_log_ppl(one, h) or 0.0) - (slow_log_ppl(two, h) or 0.0) for h in (left, right)]
        area += (right - left) * sum(ends) / 2
    return area / (high - low)


@pytest.mark.parametrize("shift", [0.0, 0.4, 5.0])
@pytest.mark.parametrize("tied", [False, True])
def test_all_draws_at_once_are_the_draws_one_by_one(shift: float, tied: bool) -> None:
    """Curves of three points that overlap, hardly overlap, or do not; also with two points of one entropy."""
    made = torch.Generator().manual_seed(int(10 * shift) + tied)
    mine, theirs = (
        (torch.rand(40, 3, generator=made, dtype=torch.float64) + more, torch.randn(40, 3, generator=made).double())
        for more in (shift, 0.0)
    )
    if tied:
        theirs[0][:20, 1] = theirs[0][:20, 0]
    at = Curves.of(*theirs).at(mine[0][:, 1:2])
    over = matched.mean_ratio(Curves.of(*mine), Curves.of(*theirs))
    for draw in range(40):
        a, b = (list(zip(h[draw].tolist(), y[draw].tolist(), strict=True)) for h, y in (mine, theirs))
        slow = slow_mean_log_ratio(a, b)
        wanted = slow_log_ppl(b, a[1][0]), None if slow is None else math.exp(slow)
        for fast, slow in zip((known(at[draw]), known(over[draw])), wanted, strict=True):
            assert (fast is None) == (slow is None)
            assert slow is None or fast == pytest.approx(slow)
    assert shift < 5 or bool(over.isnan().all())


def test_draws_are_made_once_for_the_same_picks() -> None:
    calls = []

    def entropy(picks: torch.Tensor | None) -> torch.Tensor:
        calls.append(picks)
        return torch.zeros(1 if picks is None else len(picks), dtype=torch.float64)

    cell = Sweep(1.0, torch.ones(4, dtype=torch.float64), False, entropy)
    first, second = torch.zeros(2, 4, dtype=torch.int64), torch.ones(3, 4, dtype=torch.int64)
    assert cell.draws(first) is not None
    cell.draws(first)
    assert [len(part) for part in cell.draws(second)] == [3, 3]
    assert len(calls) == 2
