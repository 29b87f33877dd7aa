"""Choosing block by block: against all combinations, against the closed form, and as part of a policy."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from student_parts import PairEnergy, flow_of, scene
from torch import Tensor

from training import student_settings
from tsdfm.cli import main
from tsdfm.distil.beyond.blocks import cut, sweep
from tsdfm.distil.midpoint import policy_from
from tsdfm.distil.settings import NavigateSettings
from tsdfm.distil.stats import Stats
from tsdfm.errors import UserError
from tsdfm.flow import RowNoise

B, L, V, K = 24, 6, 5, 5


def test_blocks_cover_the_text_once() -> None:
    for length, blocks in itertools.product(range(1, 12), range(1, 9)):
        found = [i for part in cut(length, blocks) for i in range(length)[part]]
        assert found == list(range(length))
        sizes = {part.stop - part.start for part in cut(length, blocks)}
        assert min(sizes) > 0
        assert max(sizes) - min(sizes) <= 1


def additive(states: Tensor) -> Tensor:
    """A sum over positions of a fixed bumpy function of (position, token)."""
    place = torch.arange(states.shape[-1])
    return torch.sin(3.0 * states + 1.7 * place).sum(-1).double()


def test_the_lowest_of_all_mixtures_where_blocks_do_not_interact() -> None:
    states = torch.randint(0, 50, (7, 3, 8), generator=torch.Generator().manual_seed(0))
    settings = NavigateSettings(blocks=4, k=3)
    found, energy = sweep(additive, states, states[:, 0], torch.zeros(7, 4), settings)
    for i in range(7):
        mixtures = [
            torch.cat([states[i, c, part] for c, part in zip(chosen, cut(8, 4), strict=True)])
            for chosen in itertools.product(range(3), repeat=4)
        ]
        best = min(mixtures, key=lambda x: float(additive(x)))
        assert torch.equal(found[i], best)
        assert float(energy[i]) == pytest.approx(float(additive(best)))


def test_a_sweep_draws_from_the_product_of_its_blocks() -> None:
    """K = 2, three blocks of one position, E additive: each block is candidate 1 with probability σ(E_0 − E_1)."""
    n = 40_000
    states = torch.tensor([[1, 4, 2], [3, 0, 5]]).expand(n, 2, 3)
    settings = NavigateSettings(blocks=3, k=2, selector="boltzmann", energy_temperature=0.7)
    u = torch.rand(n, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found, _ = sweep(additive, states, states[:, 0], u, settings)
    apart = torch.sin(3.0 * states[0] + 1.7 * torch.arange(3)).double()
    expected = torch.sigmoid((apart[0] - apart[1]) / 0.7)
    second = (found == states[0, 1]).double()
    error = (expected * (1 - expected) / n).sqrt()
    assert ((second.mean(0) - expected).abs() < 4 * error).all()
    joint = (second[:, 0] * second[:, 1]).mean()  # independent, as their energies do not interact
    assert float((joint - expected[0] * expected[1]).abs()) < 0.01


@pytest.mark.parametrize("source", ["uniform", "mask"])
@pytest.mark.parametrize("name", ["sequence", "sequence-to-token"])
def test_one_block_is_the_whole_candidate_and_more_are_lower(source: str, name: str) -> None:
    jump, compass = flow_of(source), PairEnergy(V + 1)
    state, logits = scene(source, B)
    t, h = torch.linspace(0, 0.875, B, dtype=torch.float64), torch.full((B,), 0.125, dtype=torch.float64)
    plain = NavigateSettings(epsilon=0.0)

    def go(settings: NavigateSettings, stats: Stats | None = None) -> Tensor:
        policy = policy_from(name, jump, settings=settings, compass=compass, stats=stats)
        return policy(state, logits, t, h, RowNoise(7, torch.arange(B)))

    whole, one, many = go(plain), go(replace(plain, blocks=1)), go(replace(plain, blocks=3))
    assert torch.equal(whole, one)
    assert not torch.equal(whole, many)
    assert torch.equal(whole[t < plain.tau], many[t < plain.tau])
    if name == "sequence":
        before, after = compass.energy(whole), compass.energy(many)
        assert (after <= before).all()
        assert (after < before).any()
    stats = Stats(K)
    go(replace(plain, blocks=3), stats)
    above = int((t >= plain.tau).sum())
    assert stats.scored == above * (K + 3 * K + (name == "sequence-to-token"))


def test_blocks_need_a_compass_and_all_candidates() -> None:
    for wrong in ({"selector": "random"}, {"agree": 0.1}):
        with pytest.raises(UserError, match="blocks"):
            NavigateSettings(blocks=2, **wrong)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="blocks"):
        NavigateSettings(blocks=-1)


def test_blocks_of_a_training_need_candidates() -> None:
    places = {name: Path("x") for name in ("tokens", "init_from", "out", "compass")}
    with pytest.raises(UserError, match=r"navigate\.blocks"):
        student_settings(**places, policy="token", navigate=NavigateSettings(blocks=2))
    assert student_settings(**places, policy="sequence", navigate=NavigateSettings(blocks=2)).navigate.blocks == 2


@pytest.mark.parametrize("policy", ["blind", "token"])
def test_blocks_without_candidates_are_refused(policy: str) -> None:
    assert main(["sample", "tsdfm-stories", "--guide", policy, "--navigate.blocks", "2"]) == 2
