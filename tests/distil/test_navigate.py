"""The parts of Navigate: closed forms and laws."""

import math

import pytest
import torch
from student_parts import flow_of, scene

from tsdfm.distil import navigate
from tsdfm.distil.navigate import (
    base_probability,
    blind_move,
    candidates,
    entropies,
    mean_entropy,
    refine,
    replacement,
    safeguard,
    select,
    temperatures,
)
from tsdfm.distil.settings import NavigateSettings
from tsdfm.errors import UserError
from tsdfm.flow import EulerJump, Polynomial, RowNoise, draw

both = pytest.mark.parametrize("source", ["uniform", "mask"])


def many(n: int, *shape: int, seed: int = 0) -> torch.Tensor:
    return RowNoise(seed, torch.arange(n)).uniform((n, *shape))


@both
@pytest.mark.parametrize("euler", [False, True])
def test_hop_is_the_jump(source: str, euler: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worked out only where something can happen, in pieces: the same bits as the whole jump."""
    monkeypatch.setitem(navigate.ROOM, "cpu", 16)
    x_t, logits = scene(source, 40)
    jump = flow_of(source)
    if euler:
        jump = EulerJump(jump.schedule, jump.source)
    t = torch.linspace(0, 0.9, 40, dtype=torch.float64)
    h = torch.where(torch.arange(40) % 3 == 0, 1.0 - t, torch.full_like(t, 0.1))
    u, free = many(40, 6, 2), torch.ones(40, 6, dtype=torch.bool)
    expected = jump.move(x_t, logits, t, h, u)
    assert torch.equal(blind_move(jump, x_t, logits, t, h, u, free), expected)
    assert not torch.equal(expected, x_t)
    free[:, :2] = False
    held = blind_move(jump, x_t, logits, t, h, u, free)
    assert torch.equal(held[:, :2], x_t[:, :2])
    assert torch.equal(held[:, 2:], expected[:, 2:])


@both
def test_candidates_are_tempered_jumps(source: str) -> None:
    x_t, logits = scene(source, 30)
    jump, rows = flow_of(source), torch.tensor([4, 9, 20, 29])
    t, h = torch.full((30,), 0.4, dtype=torch.float64), torch.full((30,), 0.3, dtype=torch.float64)
    warmth = torch.tensor([[0.5, 1.0, 2.0]], dtype=torch.float64).repeat(4, 1) * torch.tensor(
        [[1.0], [1.1], [0.9], [1.0]]
    )
    u = many(4, 3, 6, 2)
    free = torch.ones(30, 6, dtype=torch.bool)
    found = candidates(jump, x_t, logits, t, h, rows, warmth, u, free)
    for c in range(3):
        shaped = logits[rows] / warmth[:, c, None, None]
        assert torch.equal(found[:, c], jump.move(x_t[rows], shaped, t[rows], h[rows], u[:, c]))


def test_entropies() -> None:
    p = torch.tensor([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]], dtype=torch.float64)
    logits = torch.cat([p.log() + 7.0, torch.full((1, 3), -math.inf)])
    expected = [1.5 * math.log(2), 0.0, math.log(3), math.log(3)]  # all −inf counts as uniform
    assert entropies(logits).tolist() == pytest.approx(expected, abs=1e-12)
    stacked = logits[None].repeat(3, 1, 1)
    assert mean_entropy(stacked, torch.tensor([2, 0])).tolist() == pytest.approx([sum(expected) / 4] * 2)


def test_temperatures() -> None:
    entropy = torch.tensor([0.5, 2.0, 0.0], dtype=torch.float64)
    found = temperatures(entropy, 3, 100, NavigateSettings())
    assert found.shape == (3, 5)
    assert found[:, 2].tolist() == pytest.approx([0.8 + 0.4 * 0.75, 0.8, 1.2])  # the middle λ is 1
    assert (found[1] / 0.8).tolist() == pytest.approx([0.7, 0.85, 1.0, 1.15, 1.3])
    by_vocab = temperatures(entropy, 3, 100, NavigateSettings(entropy="vocab"))
    assert by_vocab[0, 2].item() == pytest.approx(0.8 + 0.4 * (1 - 0.5 / math.log(100)))
    sure = temperatures(torch.zeros(2).double(), 2, 1, NavigateSettings())  # 0/0: nothing is uncertain
    assert sure[:, 2].tolist() == pytest.approx([1.2, 1.2])
    one = temperatures(None, 2, 5, NavigateSettings(k=1, t_min=1.0, delta_t=0.0))
    assert torch.equal(one, torch.ones(2, 1, dtype=torch.float64))


def test_selectors() -> None:
    n = 40_000
    energies = torch.tensor([[0.3, -0.4, 1.0, math.inf]]).repeat(n, 1)
    u = many(n)
    assert set(select(energies, u, NavigateSettings(k=4)).tolist()) == {1}
    weights = torch.exp(-energies[0].double() / 0.5)
    for settings, law in (
        (NavigateSettings(k=4, selector="boltzmann", energy_temperature=0.5), weights / weights.sum()),
        (NavigateSettings(k=4, selector="random"), torch.full((4,), 0.25).double()),
    ):
        found = torch.bincount(select(energies, u, settings), minlength=4).double() / n
        assert bool(((found - law).abs() <= 4 * (law * (1 - law) / n).sqrt()).all())
    assert int(torch.bincount(select(None, u, NavigateSettings(k=4, selector="random"))).numel()) == 4


def test_replacement_is_equation_9() -> None:
    settings, t = NavigateSettings(), torch.tensor([0.2, 0.6], dtype=torch.float64)
    base = base_probability(t, torch.tensor([0.1, 0.2]).double(), Polynomial(1.0))
    assert base.tolist() == pytest.approx([1 - math.exp(-0.1 / 0.8), 1 - math.exp(-0.2 / 0.4)])
    conf = torch.tensor([0.9, 0.5], dtype=torch.float64)
    for align in (-1.0, 0.0, 1.0):
        expected = [
            min(0.95, b * math.exp(align * c * (1 - 0.5 * s) * 0.5))
            for b, c, s in zip(base.tolist(), conf.tolist(), t.tolist(), strict=True)
        ]
        found = replacement(base, torch.full((2,), align).double(), conf, t, settings)
        assert found.tolist() == pytest.approx(expected)
    assert replacement(torch.ones(1).double(), torch.ones(1), torch.ones(1), torch.zeros(1), settings).item() == 0.95
    assert base_probability(torch.zeros(1), torch.zeros(1), Polynomial(0.5)).item() == 0.0  # 0·∞


def one_position(n: int, best: int, x: int, logits: list[float], **settings: object) -> torch.Tensor:
    """The law of a refined token, over n states that differ in their random numbers alone."""
    x_t, chosen = torch.full((n, 1), x), torch.full((n, 1), best)
    t, h = torch.full((n,), 0.3, dtype=torch.float64), torch.full((n,), 0.2, dtype=torch.float64)
    wide = torch.tensor(logits, dtype=torch.float64).expand(n, 1, -1)
    free, rows = torch.ones(n, 1, dtype=torch.bool), torch.arange(n)
    made = NavigateSettings(**settings)  # type: ignore[arg-type]
    out = refine(x_t, chosen, wide, t, h, rows, many(n, 1, 2), free, Polynomial(1.0), made)
    return torch.bincount(out[:, 0], minlength=len(logits)).double() / n


def test_the_law_of_a_refined_token() -> None:
    """Each token v ≠ best arrives with p(v) · p_jump(v), and p_jump knows whether v or best is the likeliest."""
    n, logits = 200_000, [0.2, 1.4, -0.3]
    p = torch.tensor(logits).double().softmax(-1)
    conf, base, beta = p.max().item(), 1 - math.exp(-0.2 / 0.7), 1 - 0.5 * 0.3
    for best in (0, 1):
        found = one_position(n, best, x=2, logits=logits)
        for v in {0, 1, 2} - {best}:
            align = int(v == 1) - int(best == 1)
            expected = p[v].item() * base * math.exp(align * conf * beta * 0.5)
            assert found[v].item() == pytest.approx(expected, abs=4 * (expected / n) ** 0.5)


def test_refining_what_jumped_keeps_the_number_of_jumps() -> None:
    n, logits = 5000, [0.2, 1.4, -0.3]
    still = one_position(n, best=2, x=2, logits=logits, refine="jumped")
    assert still.tolist() == [0, 0, 1]  # it had not jumped
    moved = one_position(n, best=0, x=2, logits=logits, refine="jumped")
    assert moved[2] == 0  # never back to x_t
    assert moved[1] > 0.1
    assert one_position(n, best=2, x=2, logits=logits)[:2].sum() > 0.1


def test_a_refined_token_is_the_draw_or_the_selected_one() -> None:
    x_t, logits = scene("mask", 300)
    best = scene("mask", 300, seed=4)[0]
    t, h = torch.full((300,), 0.5, dtype=torch.float64), torch.full((300,), 0.4, dtype=torch.float64)
    u, free = many(300, 6, 2), torch.ones(300, 6, dtype=torch.bool)
    out = refine(x_t, best, logits, t, h, torch.arange(300), u, free, Polynomial(1.0), NavigateSettings())
    proposed = draw(logits, u[..., 0])  # a plain draw: x_t may come again
    assert bool(((out == best) | (out == proposed)).all())
    changed = out != best
    assert 0.2 < changed.double().mean() < 0.8
    assert bool((proposed == x_t)[changed].any())
    free[:, 3] = False
    held = refine(x_t, best, logits, t, h, torch.arange(300), u, free, Polynomial(1.0), NavigateSettings())
    assert torch.equal(held[:, 3], best[:, 3])


def test_safeguard() -> None:
    best, refined = torch.zeros(4, 3, dtype=torch.int64), torch.ones(4, 3, dtype=torch.int64)
    energy = torch.tensor([0.0, 1.0, -2.0, 0.5], dtype=torch.float64)
    after = energy + torch.tensor([0.0999, 0.1001, -3.0, 0.0], dtype=torch.float64)
    out, accepted = safeguard(best, energy, refined, after, 0.1)
    assert accepted.tolist() == [True, False, True, True]
    assert out[:, 0].tolist() == [1, 0, 1, 1]


@both
def test_one_candidate_at_temperature_one_is_the_blind_jump_in_law(source: str) -> None:
    """K = 1, λ = 1, T = 1: the empirical transition law equals the analytic one."""
    n, jump = 60_000, flow_of(source)
    x = 0 if source == "uniform" else 5
    logits = torch.tensor([0.4, 1.0, -0.5, 0.0, -1.0], dtype=torch.float64)
    p = logits.softmax(-1)
    p_z = 0.0 if source == "mask" else p[x].item()
    settings = NavigateSettings(k=1, t_min=1.0, delta_t=0.0)
    warmth = temperatures(None, n, 5, settings)
    t, h = torch.full((n,), 0.25, dtype=torch.float64), torch.full((n,), 0.25, dtype=torch.float64)
    args = (torch.full((n, 1), x), logits.expand(n, 1, -1), t, h)
    found = candidates(jump, *args, torch.arange(n), warmth, many(n, 1, 1, 2), torch.ones(n, 1, dtype=torch.bool))
    leave = 1 - (0.5 / 0.75) ** (1 - p_z)
    law = {v: leave * p[v].item() / (1 - p_z) for v in range(5) if v != x}
    law[x] = 1 - leave
    for v, expected in law.items():
        share = (found[:, 0, 0] == v).double().mean().item()
        assert share == pytest.approx(expected, abs=4 * (expected * (1 - expected) / n) ** 0.5)


def test_settings_refuse_nonsense() -> None:
    for wrong in (
        {"k": 0},
        {"tau": 1.5},
        {"tau_end": -0.1},
        {"lambda_min": 0.0},
        {"t_min": 0.0},
        {"energy_temperature": 0.0},
        {"agree": -1.0},
        {"agree": 0.1, "selector": "random"},
    ):
        with pytest.raises(UserError):
            NavigateSettings(**wrong)  # type: ignore[arg-type]
