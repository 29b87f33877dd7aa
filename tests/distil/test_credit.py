"""Whose doing a text is: returns, advantages and what is usual, by hand."""

from __future__ import annotations

import pytest
import torch

from tsdfm.distil.policy.credit import MOST, Usual, advantages, returns
from tsdfm.engine.distributed import Processes

f64 = torch.float64


@pytest.mark.parametrize("before", [False, True])
def test_returns_by_hand(before: bool) -> None:
    rewards = torch.randn(3, 7, generator=torch.Generator().manual_seed(0), dtype=f64)
    found = returns(rewards, 0.6, before=before)
    for n in range(3):
        for i in range(7):
            wanted = sum(0.6 ** abs(j - i) * float(rewards[n, j]) for j in range(7) if before or j >= i)
            assert found[n, i].item() == pytest.approx(wanted, rel=1e-12)


def test_advantages_compare_texts_of_one_state() -> None:
    found = torch.randn(6, 5, generator=torch.Generator().manual_seed(1), dtype=f64)
    found[3:] += 100  # what all texts of a state have in common is nobody's doing
    written = torch.ones(6, 5, dtype=torch.bool)
    written[1, 3:] = False
    typical = written.clone()
    typical[0, 0], found[0, 0] = False, 1e3  # what is not typical sets no measure for the rest
    worth = advantages(found, 3, written, typical, Processes())
    rest = torch.zeros_like(found)
    for n in range(6):
        group = [m for m in range(6) if m // 3 == n // 3 and m != n]
        rest[n] = found[n] - sum(found[m] for m in group) / 2
    rest *= written
    wanted = (rest / (rest[typical].square().mean()).sqrt()).clamp(-MOST, MOST)
    torch.testing.assert_close(worth, wanted)
    assert bool((worth[~written] == 0).all())


def test_an_early_end_is_no_gain() -> None:
    """Places bring ever less, ends bring much, alike in all texts: nobody has done better, whenever it ended."""
    usual = Usual(60)
    usual.bind(Processes())
    size = torch.linspace(20, 60, 40).long()[:, None]
    written, ends = torch.arange(60) < size, torch.arange(60) == size - 1
    rewards = torch.where(ends, 2.0, torch.linspace(-1, -3, 60).expand(40, 60))
    for _ in range(30):
        rest = usual.less(rewards, written, ends)
    assert bool((rest[~written] == 0).all())
    worth = returns(rest, 0.9, before=False)
    plain = returns((rewards - rewards[written].mean()) * written, 0.9, before=False)
    early, late = slice(5, 15), slice(30, 40)  # those that end at about 30, and the longest
    assert bool(written[early, 24].all())
    assert abs(float(worth[early, 24].mean() - worth[late, 24].mean())) < 0.25
    assert float(plain[early, 24].mean() - plain[late, 24].mean()) > 2
