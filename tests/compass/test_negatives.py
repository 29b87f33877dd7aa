import math

import pytest
import torch
from compass_parts import ANCHOR, LENGTH, VOCAB, make_counts, make_negatives, make_teacher, make_walk

from tsdfm.compass.loss import nce
from tsdfm.compass.negatives import STRATEGIES, Strategy
from tsdfm.compass.settings import NegativeSettings
from tsdfm.errors import UserError

SOURCES = ("uniform", "mask")
TOKEN = ("random_replace", "frequency_replace", "token_repeat")
ALL = ("time_downstep", "velocity_step", *TOKEN)


def only(name, source="uniform", batch=300, count=4, t=None, seed=0, first=0, **settings):
    """`count` negatives of one strategy for `batch` rows at times spread over (0, 1]."""
    rows = torch.arange(first, first + batch)
    walk = make_walk(rows, source)
    times = torch.linspace(0.01, 1.0, 300, dtype=torch.float64)[rows % 300] if t is None else torch.full((batch,), t)
    teacher = make_teacher(source) if name == "velocity_step" else None
    negatives = make_negatives(source, teacher, mixture=(f"{name}=1",), **settings)
    made = negatives(walk, times.double(), rows, count, seed, 5)
    return walk, times.double(), made


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", ALL)
def test_only_revealed_positions_change_and_never_the_anchor(name, source):
    walk, t, made = only(name, source, forward="reconstruct", levels=(0.0625, 0.25))
    x_t = walk.at(t)
    changed = made.states != x_t[:, None]
    assert not changed[..., :ANCHOR].any()
    assert not (changed & ~walk.revealed(t)[:, None]).any()
    assert changed.any(-1).float().mean() > (0.3 if name == "velocity_step" else 0.8)
    assert torch.equal(made.void, ~changed.any(-1))
    assert (made.states[:, :, ANCHOR:][~changed[:, :, ANCHOR:]] <= VOCAB).all()


@pytest.mark.parametrize("source", SOURCES)
def test_an_euler_step_forward_keeps_the_anchor_and_may_reveal_more(source):
    walk, t, made = only("velocity_step", source, levels=(0.25,))
    x_t = walk.at(t)
    assert torch.equal(made.states[..., :ANCHOR], x_t[:, None, :ANCHOR].expand(-1, 4, -1))
    assert ((made.states != x_t[:, None]) & ~walk.revealed(t)[:, None]).any()
    if source == "mask":
        clean = made.states[t == 1.0]
        assert (clean != VOCAB).all()  # a step to t = 1 leaves no [MASK]


@pytest.mark.parametrize("floor_of", ["revealed", "length"])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", TOKEN)
def test_the_number_of_changes_is_the_rate_drawn(name, source, floor_of):
    walk, t, made = only(name, source, floor_of=floor_of)
    x_t, revealed = walk.at(t), walk.revealed(t)
    for b in range(0, 300, 7):
        for j in range(4):
            n = int(revealed[b].sum())
            floor = 0.1 * (n if floor_of == "revealed" else LENGTH)
            wanted = max(1, math.floor(max(float(made.rate[b, j]) * n, floor) + 0.5))
            changed = made.states[b, j] != x_t[b]
            room = n
            if name == "token_repeat" and changed.any():
                room = int((revealed[b] & (x_t[b] != made.states[b, j][changed][0])).sum())
            if name == "token_repeat" and not changed.any():
                assert len(x_t[b][revealed[b]].unique()) <= 1  # nothing else to overwrite
            else:
                assert int(changed.sum()) == min(wanted, room)


def test_replacements_are_of_the_kind_they_say():
    walk, t, made = only("random_replace", "mask", count=12)
    changed = made.states != walk.at(t)[:, None]
    drawn = torch.bincount(made.states[changed], minlength=VOCAB).double()
    assert drawn.min() > 0
    assert len(drawn) == VOCAB
    expected = drawn.sum() / VOCAB
    assert ((drawn - expected) ** 2 / expected).sum() < 80  # chi-square of 39 degrees: far below one in a thousand

    walk, t, made = only("frequency_replace", "mask", count=12)
    bins = make_negatives().kit.frequency.bin_of
    x_t = walk.at(t)[:, None].expand_as(made.states)
    changed = made.states != x_t
    assert torch.equal(bins[made.states[changed]], bins[x_t[changed]])

    walk, t, made = only("token_repeat")
    x_t, revealed = walk.at(t), walk.revealed(t)
    for b, j in [(b, j) for b in range(5, 300, 11) for j in range(4)]:
        new = made.states[b, j][made.states[b, j] != x_t[b]].unique()
        assert len(new) <= 1
        assert set(new.tolist()) <= set(x_t[b][revealed[b]].tolist())


@pytest.mark.parametrize("source", SOURCES)
def test_time_downstep_is_the_earlier_state_of_the_same_pair(source):
    walk, t, made = only("time_downstep", source)
    for b in range(0, 300, 5):
        for j in range(4):
            earlier = min(float(t[b]), max(float(t[b] - made.rate[b, j]), 0.01))
            expected = torch.where(walk.u[b] < earlier, walk.x_1[b], walk.x_0[b])
            expected[:ANCHOR] = walk.x_1[b, :ANCHOR]
            assert torch.equal(made.states[b, j], expected)


def test_rates_follow_beta_over_their_range_and_the_mixture_its_weights():
    negatives = make_negatives("uniform", make_teacher())
    rows = torch.arange(500)
    made = negatives(make_walk(rows), torch.full((500,), 0.7, dtype=torch.float64), rows, 12, 0, 5)
    share = torch.bincount(made.choice.view(-1), minlength=5).double() / made.choice.numel()
    assert torch.allclose(share, torch.tensor([4, 1, 2, 2, 2]).double() / 11, atol=0.02)
    ranges = {"time_downstep": (0.025, 0.5), "random_replace": (0.05, 0.25), "token_repeat": (0.05, 0.5)}
    ranges["frequency_replace"] = (0.03, 0.2)
    for name, (low, high) in ranges.items():
        rate = made.rate[made.choice == negatives.names.index(name)]
        v = ((rate - low) / (high - low)).sort().values
        cdf = 1 - (1 - v) ** 3
        worst = (cdf - (torch.arange(len(v)) + 0.5) / len(v)).abs().max()
        assert v.min() >= 0
        assert v.max() <= 1
        assert worst * math.sqrt(len(v)) < 1.9  # Kolmogorov-Smirnov at about one in a thousand


@pytest.mark.parametrize("source", SOURCES)
def test_velocity_step_keeps_by_the_ratio_of_kappas_and_calls_the_teacher_for_its_own_pairs_only(source, monkeypatch):
    teacher = make_teacher(source)
    seen = []
    real = teacher.net.hidden
    monkeypatch.setattr(teacher.net, "hidden", lambda x, t, h: seen.append((x, t)) or real(x, t, h))
    negatives = make_negatives(source, teacher, levels=(0.125,))
    rows = torch.arange(600)
    walk, t = make_walk(rows, source), torch.full((600,), 0.5, dtype=torch.float64)
    made = negatives(walk, t, rows, 4, 0, 5)
    mine = (made.choice == negatives.names.index("velocity_step")).nonzero()[:, 0]
    (x_back, time), x_t = seen[0], walk.at(t)[mine]
    assert len(seen) == 1
    assert len(x_back) == len(mine) < 600
    assert torch.allclose(time, torch.full_like(time, 0.375))
    revealed = walk.revealed(t)[mine]
    assert torch.equal(x_back[~revealed], x_t[~revealed])
    lost = 1 - (x_back == x_t)[revealed].double().mean().item()
    expected = 0.25 * (1 if source == "mask" else 1 - 1 / VOCAB)  # κ(t−h)/κ(t) = 3/4; a source token may be the same
    assert abs(lost - expected) < 4 * math.sqrt(0.25 * 0.75 / int(revealed.sum()))
    if source == "mask":
        assert (x_back[revealed & (x_back != x_t)] == VOCAB).all()


@pytest.mark.parametrize("source", SOURCES)
def test_a_rows_negatives_do_not_depend_on_its_batch(source):
    negatives = make_negatives(source, make_teacher(source))
    rows = torch.arange(40)
    t = torch.linspace(0.05, 1, 40, dtype=torch.float64)
    whole = negatives(make_walk(rows, source), t, rows, 12, 3, 5)
    some = torch.tensor([31, 2, 17])
    part = negatives(make_walk(some, source), t[some], some, 12, 3, 5)
    assert torch.equal(part.states, whole.states[some])
    assert torch.equal(part.choice, whole.choice[some])
    other = negatives(make_walk(rows, source), t, rows, 12, 4, 5)
    assert not torch.equal(other.states, whole.states)


def test_nothing_revealed_is_no_negative_and_costs_nothing():
    for name in (*TOKEN, "time_downstep"):
        _, _, made = only(name, t=0.0, batch=8)
        assert made.void.all()
    energies = torch.randn(8, 5, dtype=torch.float64)
    assert torch.equal(nce(energies[:, 0], energies[:, 1:], made.void), torch.zeros(8, dtype=torch.float64))


def test_a_user_adds_a_strategy_in_a_few_lines(monkeypatch):
    def shout(pairs):
        return torch.where(pairs.pick(), 7, pairs.x_t)

    monkeypatch.setitem(STRATEGIES, "shout", Strategy(shout, 0.5, 0.5))
    walk, t, made = only("shout", t=1.0, batch=20)
    changed = made.states != walk.at(t)[:, None]
    assert (made.states[changed] == 7).all()
    assert changed.any()


def test_mistakes_in_the_mixture_are_named():
    with pytest.raises(UserError, match="did you mean 'token_repeat'"):
        make_negatives(mixture=("token_repet=1",))
    with pytest.raises(UserError, match="name=value"):
        NegativeSettings(mixture=("token_repeat",))
    with pytest.raises(UserError, match="no number"):
        NegativeSettings(mixture=("token_repeat=many",))
    with pytest.raises(UserError, match="low:high"):
        NegativeSettings(ranges=("token_repeat=0.1",))
    rows = torch.arange(4)
    negatives, walk = make_negatives(mixture=("velocity_step=1",)), make_walk(rows)
    with pytest.raises(UserError, match="needs a teacher"):
        negatives(walk, torch.ones(4).double(), rows, 2, 0, 5)


def test_a_mixture_may_come_as_one_text():
    assert NegativeSettings(mixture=("token_repeat=1, time_downstep=3",)).weights() == {
        "token_repeat": 1.0,
        "time_downstep": 3.0,
    }


def test_ranges_can_be_given():
    _, _, made = only("random_replace", ranges=("random_replace=0.4:0.4",))
    assert torch.allclose(made.rate, torch.tensor(0.4).double())


def test_counts_used_here_have_unseen_and_common_tokens():
    assert make_counts().min() < 10 < 1000 < make_counts().max()
