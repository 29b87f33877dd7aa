import itertools
import math
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from compass_parts import make_negatives

from tsdfm.compass.exam import BINS, bin_of, falling
from tsdfm.compass.figure import energy_figure
from tsdfm.compass.statistics import curve_summary, pearson, ranks, spearman
from tsdfm.compass.task import scores
from tsdfm.metrics.intervals import wilson


def test_correlations_equal_what_numpy_and_counting_say():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=50), rng.integers(0, 6, 50).astype(float)
    assert pearson(x, y) == pytest.approx(np.corrcoef(x, y)[0, 1])
    counted = [sum(z < v for z in y) + (sum(z == v for z in y) - 1) / 2 for v in y]
    assert ranks(y).tolist() == counted
    assert spearman(x, y) == pytest.approx(np.corrcoef(ranks(x), counted)[0, 1])
    assert spearman(x, -np.exp(x)) == pytest.approx(-1.0)
    assert math.isnan(pearson(x, np.ones(50)))


def test_wilson_solves_its_equation():
    for right, asked in ((0, 10), (7, 10), (560, 1000), (50, 50)):
        low, high = wilson(right, asked)
        p = right / asked
        assert 0 <= low <= p <= high <= 1
        for bound in (low, high):  # |p − b| = z·√(b(1 − b)/n), unless clipped
            assert bound in (0.0, 1.0) or abs(p - bound) == pytest.approx(
                1.959964 * math.sqrt(bound * (1 - bound) / asked), rel=1e-6
            )
    assert wilson(0, 0) == (0.0, 1.0)


def test_bins_of_time_and_their_fall():
    assert bin_of(np.array([0.0, 0.0999, 0.1, 0.95, 1.0])).tolist() == [0, 0, 1, 9, 10]
    assert falling(np.array([3.0, 2.0, 2.0, 1.0])) == pytest.approx(2 / 3)
    assert falling(np.array([3.0, math.nan, 2.0])) == 1.0


def curves():
    times = np.tile(np.append((np.arange(10) + 0.5) / 10, 1.0), (2, 1))
    energies = np.tile(np.linspace(1.0, -1.0, 11), (2, 1))
    energies[1] += 0.5
    energies[1, 4] = energies[1, 3] + 0.25  # a rise from bin 3 to bin 4
    same = np.zeros((2, 10), dtype=bool)
    same[0, 7] = True
    energies[0, 8] = energies[0, 7]  # the same state, so no violation
    return times, energies, same


def test_the_summary_counts_what_the_appendix_asks():
    times, energies, same = curves()
    found = curve_summary(times, energies, same)
    assert found["violations_by_region"] == [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]
    assert found["samples_with_violation"] == 1
    assert found["samples"] == 2
    assert found["smoothness"] == pytest.approx(18 / 19)
    assert (found["smoothness_pairs"], found["identical_pairs"]) == (19, 1)
    assert found["largest_violation"] == pytest.approx(0.25)
    assert found["energy_gap"] == pytest.approx(2.0)
    means = [part["mean"] for part in found["bins"]]
    assert means == pytest.approx(energies.mean(0).tolist())
    assert [part["std"] for part in found["bins"]] == pytest.approx(energies.std(0).tolist())
    assert found["adjacent_bins"] == 10
    assert found["adjacent_bins_monotone"] == pytest.approx(sum(b < a for a, b in itertools.pairwise(means)) / 10)
    assert found["spearman"] < -0.9


def test_the_figure_is_a_picture_of_the_bins():
    found = {"source": "mask", **curve_summary(*curves())}
    root = ElementTree.fromstring(energy_figure(found))
    space = "{http://www.w3.org/2000/svg}"
    panel = root.find(f"{space}g")
    dots = [path for path in panel.iter(f"{space}path") if path.get("class") == "dot"]
    assert len(dots) == 11
    heights = [float(dot.attrib["d"].split("L")[0].split()[1]) for dot in dots]
    assert heights[-1] > heights[0]  # lower energy is further down
    assert len(next(panel.iter(f"{space}polygon")).attrib["points"].split()) == 22
    assert root.attrib["aria-label"].endswith("mask source")


def test_less_than_a_pair_does_not_choose_a_checkpoint() -> None:
    """The strategies have slightly different numbers of pairs, so that the same number of right ones scores apart."""
    negatives = make_negatives(mixture=("random_replace=1", "token_repeat=1"))
    curve = {f"bin {i}": float(-i) for i in range(BINS + 1)}
    asked = {"asked random_replace": 254.0, "asked token_repeat": 252.0}

    def told(random: float, repeat: float, processes: int = 1) -> dict[str, float]:
        right = {"right random_replace": random, "right token_repeat": repeat}
        return scores({n: x / processes for n, x in {**right, **asked, **curve}.items()}, negatives, processes)

    one, other, worse = told(253, 250), told(252, 251), told(252, 250)
    assert one["score"] != other["score"]
    assert one["shortfall"] == other["shortfall"] == told(253, 250, 2)["shortfall"] < worse["shortfall"]
    assert one["smooth_pct"] == 1
    assert one["shortfall"] == pytest.approx(3 / 506)
