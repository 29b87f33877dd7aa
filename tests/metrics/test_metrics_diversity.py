"""Diversity against sacrebleu and by hand; MAUVE against its integral."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
import torch

from tsdfm.errors import UserError
from tsdfm.metrics.diversity import position_difference, self_bleu, token_accuracy, token_agreement
from tsdfm.metrics.mauve import cluster_count, curve_area, kmeans, mauve, mauve_interval, principal


def random_texts(seed: int, count: int, words: int) -> list[list[str]]:
    draw = random.Random(seed)
    return [[draw.choice("abcdefg") for _ in range(draw.randint(1, words))] for _ in range(count)]


@pytest.mark.parametrize("seed", range(8))
def test_self_bleu_is_sacrebleus(seed: int) -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    texts = random_texts(seed, 6, 18)
    found = self_bleu(texts)
    for i, text in enumerate(texts):
        others = [" ".join(other) for j, other in enumerate(texts) if j != i]
        theirs = sacrebleu.sentence_bleu(
            " ".join(text), others, smooth_method="exp", tokenize="none", use_effective_order=True
        )
        assert found[i] == pytest.approx(theirs.score / 100, abs=1e-9)


def test_self_bleu_at_its_ends() -> None:
    assert self_bleu([[1, 2, 3, 4, 5]] * 3) == pytest.approx([1.0] * 3)
    assert self_bleu([[1, 2, 3, 4], [5, 6, 7, 8], []]) == [0.0, 0.0, 0.0]
    with pytest.raises(UserError, match="at least two"):
        self_bleu([[1]])
    # by hand: 3 of 4 words after clipping, 2 of 3 bigrams, 1 of 2 trigrams, no four-gram; as long as its reference
    by_hand = (3 / 4 * 2 / 3 * 1 / 2 * 1 / 2) ** 0.25
    assert self_bleu([[1, 2, 3, 3], [1, 2, 3, 4]])[0] == pytest.approx(by_hand)
    assert self_bleu([[1, 2], [1, 1, 2]])[0] == pytest.approx(math.exp(1 - 3 / 2))  # all there, but too short


def test_position_difference_and_agreement_follow_the_paper() -> None:
    rows = torch.tensor([[1, 2, 3, 4], [1, 2, 9, 9], [1, 5, 3, 8]])
    by_pair = [(rows[i] != rows[j]).double().mean().item() for i, j in itertools.combinations(range(3), 2)]
    assert np.mean(position_difference(rows)) == pytest.approx(np.mean(by_pair))
    assert position_difference(rows)[0] == pytest.approx((2 / 4 + 2 / 4) / 2)
    assert token_agreement(rows) == pytest.approx([1, 2 / 3, 2 / 3, 1 / 3])
    shifted = torch.tensor([[1, 2, 3, 4], [2, 3, 4, 1]])
    assert position_difference(shifted) == [1.0, 1.0]  # a shift is no exception


def test_predicted_tokens_alone_count() -> None:
    predicted, reference = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 4], [5, 5, 5, 5]]), torch.tensor([1, 2, 0, 4])
    where = torch.tensor([[False, False, True, True], [True, True, True, True], [False] * 4])
    assert token_accuracy(predicted, reference.expand(3, 4), where) == pytest.approx([0.5, 0.75])
    assert token_accuracy(predicted, reference.expand(3, 4), torch.tensor([False, True, False, False])) == [1, 1, 0]


def test_the_divergence_curve_at_its_ends() -> None:
    p = np.array([0.2, 0.3, 0.5])
    assert curve_area(p, p) == pytest.approx(1.0)
    assert curve_area(np.array([1.0, 0.0]), np.array([0.0, 1.0])) < 0.01
    q = np.array([0.5, 0.3, 0.2])
    assert curve_area(p, q) == pytest.approx(curve_area(q, p))
    # what the authors' own package (mauve-text 0.4.0) gives for these two and 25 mixtures
    p, q = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.4, 0.3, 0.25, 0.05])
    assert curve_area(p, q, points=25) == pytest.approx(0.5503615177827546, rel=1e-12)


def test_disjoint_histograms_have_a_closed_form() -> None:
    """p and q share nothing: x = (1 − w)^c, y = w^c, and the area is c·B(c, c + 1) = c·Γ(c)Γ(c + 1)/Γ(2c + 1)."""
    p, q = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    for c in (1.0, 2.0, 5.0):
        area = c * math.gamma(c) * math.gamma(c + 1) / math.gamma(2 * c + 1)
        assert curve_area(p, q, scale=c, points=4000) == pytest.approx(area, rel=1e-4)


def test_mauve_orders_sets_by_how_near_they_are() -> None:
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(6, 16, generator=generator) * 4

    def draw(weights: list[float], n: int = 300) -> torch.Tensor:
        which = torch.multinomial(torch.tensor(weights), n, replacement=True, generator=generator)
        return centres[which] + torch.randn(n, 16, generator=generator) * 0.3

    flat = [1.0] * 6
    same = mauve(draw(flat), draw(flat), clusters=6)
    near = mauve(draw(flat), draw([2.0, 2.0, 1.0, 1.0, 1.0, 1.0]), clusters=6)
    far = mauve(draw(flat), draw([1.0, 0.0, 0.0, 0.0, 0.0, 0.0]), clusters=6)
    assert same > near > far
    assert same > 0.95
    assert far < 0.3
    assert mauve(draw([1.0, 1.0, 0, 0, 0, 0]), draw([0, 0, 1.0, 1.0, 0, 0])) < 0.02
    a, b = draw(flat), draw(flat)
    assert mauve(a, b) == mauve(a, b)


def test_clusters_are_found() -> None:
    generator = torch.Generator().manual_seed(1)
    truth = torch.arange(5).repeat(40)
    x = torch.randn(5, 8, generator=generator)[truth] * 5 + torch.randn(200, 8, generator=generator) * 0.1
    labels = kmeans(principal(x.double()), 5)
    joint = torch.unique(torch.stack([truth, labels], 1), dim=0)
    assert len(joint) == 5  # each true group is one cluster


def test_principal_parts_keep_the_variance() -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(100, 1, generator=generator) @ torch.randn(1, 6, generator=generator)
    x = (x + 1e-3 * torch.randn(100, 6, generator=generator)).double()
    assert principal(x).shape == (100, 1)
    everything = principal(x, keep=1.0)
    torch.testing.assert_close(torch.cdist(everything, everything), torch.cdist(x, x), rtol=1e-6, atol=1e-6)


def test_mauve_refuses_what_it_cannot_compare() -> None:
    for bad in ((torch.zeros(5, 3), torch.zeros(5, 4)), (torch.zeros(1, 3), torch.zeros(5, 3))):
        with pytest.raises(UserError, match="MAUVE"):
            mauve(*bad)


def test_the_interval_of_mauve_is_around_it_and_within_its_bounds() -> None:
    made = torch.Generator().manual_seed(4)
    one, two = torch.randn(60, 5, generator=made), torch.randn(60, 5, generator=made) + 0.4
    value, low, high = mauve_interval(one, two, draws=60)
    assert value == mauve(one, two)
    assert 0 <= low < value < high <= 1
    assert mauve_interval(one, one, draws=20)[0] == pytest.approx(1.0, abs=1e-3)
    far = mauve_interval(one, two + 50.0, draws=20)
    assert far[0] < 0.02
    assert far[1] >= 0
    assert [cluster_count(n) for n in (5, 20, 512)] == [2, 2, 51]


@pytest.mark.parametrize("shape", [(40, 6), (6, 40)])
def test_principal_parts_are_those_of_the_singular_values(shape: tuple[int, int]) -> None:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = principal(x, keep=0.8)
    u, s, _ = torch.linalg.svd(x - x.mean(0), full_matrices=False)
    count = int(((s**2).cumsum(0) / (s**2).sum() < 0.8).sum()) + 1
    wanted = u[:, :count] * s[:count]
    torch.testing.assert_close(found.abs(), wanted.abs())
