"""The four policies: line by line against plain numbers, bit for bit below τ, and what they count."""

import math
from dataclasses import replace

import pytest
import torch
from student_parts import PairEnergy, flow_of, navigate_by_hand, numbers_of, scene

from tsdfm.distil.midpoint import CANDIDATES, POLICIES, Blind, diversity, policy_from
from tsdfm.distil.navigate import candidates, entropies, mean_entropy, temperatures
from tsdfm.distil.settings import NavigateSettings
from tsdfm.distil.stats import Stats, readable
from tsdfm.errors import UserError
from tsdfm.flow import Jump, RowNoise, solve

B, L, V, K = 24, 6, 5, 5
both = pytest.mark.parametrize("source", ["uniform", "mask"])
navigated = pytest.mark.parametrize("name", list(POLICIES))
SETTINGS = NavigateSettings(epsilon=0.5)


def times(rows: int = B) -> tuple[torch.Tensor, torch.Tensor]:
    """Start times on both sides of τ = 0.2, some steps up to t = 1."""
    t = torch.linspace(0, 0.875, rows, dtype=torch.float64)
    return t, torch.where(torch.arange(rows) % 4 == 0, 1.0 - t, torch.full_like(t, 0.125))


def noise(rows: torch.Tensor | None = None) -> RowNoise:
    return RowNoise(7, torch.arange(B) if rows is None else rows)


@both
@navigated
@pytest.mark.parametrize("entropy", ["batch", "vocab"])
def test_line_by_line(source: str, name: str, entropy: str) -> None:
    """Two calls in a row, with the numbers each of them draws, against Algorithm 1 written out for one position."""
    jump, compass = flow_of(source), PairEnergy(V + 1)
    settings = replace(SETTINGS, entropy=entropy, beta_0=1.5)
    policy = policy_from(name, jump, settings=settings, compass=compass)
    (t, h), shared = times(), noise()
    state, rejected, replaced = scene(source, B)[0], 0, 0
    for call in range(2):
        logits = scene(source, B, seed=call)[1]
        found = policy(state, logits, t, h, shared)
        blind = flow_of(source)(state, logits, t, h, fast_forward(noise(), call))
        above = (t >= settings.tau).nonzero()[:, 0]
        whole = entropies(logits[above]).mean(-1).max().item() if entropy == "batch" else math.log(V)
        for i in range(B):
            if t[i] < settings.tau:
                assert torch.equal(found[i], blind[i])
                continue
            args = (state[i].tolist(), logits[i].tolist(), t[i].item(), h[i].item())
            dials = {"explores": name != "token", "mask": source == "mask"}
            numbers = numbers_of(7, i, L, K, call)
            expected = navigate_by_hand(*args, numbers, compass, settings, whole, refines=name != "sequence", **dials)
            chosen = navigate_by_hand(*args, numbers, compass, settings, whole, refines=False, **dials)
            assert found[i].tolist() == expected, (i, call)
            replaced += expected != chosen
            generous = replace(settings, epsilon=1e9)
            rejected += (
                navigate_by_hand(*args, numbers, compass, generous, whole, refines=name != "sequence", **dials)
                != expected
            )
        state = found
    if name != "sequence":
        assert replaced > 5  # the case is not empty: both answers of the safeguard occur
        assert rejected > 2


def fast_forward(made: RowNoise, draws: int) -> RowNoise:
    made.draws = draws
    return made


@both
@navigated
def test_tau_one_is_blind_bit_for_bit(source: str, name: str) -> None:
    jump, (t, h) = flow_of(source), times()
    policy = policy_from(name, jump, settings=replace(SETTINGS, tau=1.0), compass=PairEnergy(V + 1))
    blind, one, other = policy_from("blind", jump), noise(), noise()
    x = y = scene(source, B)[0]
    for seed in range(3):
        logits = scene(source, B, seed=seed)[1]
        x, y = policy(x, logits, t, h, one), blind(y, logits, t, h, other)
        assert torch.equal(x, y)
    assert one.draws == other.draws == 3
    reference = jump(scene(source, B)[0], scene(source, B)[1], t, h, noise())
    assert torch.equal(blind(*scene(source, B), t, h, noise()), reference)


@navigated
def test_navigation_above_leaves_what_is_below_alone(name: str) -> None:
    """Rows under τ take the same numbers whether or not their neighbours are navigated, in every later call too."""
    jump, (t, h) = flow_of("uniform"), times()
    below = t < SETTINGS.tau
    policy = policy_from(name, jump, settings=SETTINGS, compass=PairEnergy(V))
    one, other = noise(), noise()
    x = y = scene("uniform", B)[0]
    for seed in range(3):
        logits = scene("uniform", B, seed=seed)[1]
        x, y = policy(x, logits, t, h, one), jump(y, logits, t, h, other)
        assert torch.equal(x[below], y[below])
    assert not torch.equal(x[~below], y[~below])


@both
@navigated
def test_a_row_does_not_know_its_batch(source: str, name: str) -> None:
    """With entropies over log |V|: alone, in another order, in another batch."""
    policy = policy_from(name, flow_of(source), settings=replace(SETTINGS, entropy="vocab"), compass=PairEnergy(V + 1))
    (x_t, logits), (t, h) = scene(source, B), times()
    whole = policy(x_t, logits, t, h, noise())
    for some in (torch.tensor([20]), torch.tensor([23, 2, 11, 12]), torch.arange(B - 1, -1, -1)):
        part = policy(x_t[some], logits[some], t[some], h[some], noise(some))
        assert torch.equal(part, whole[some])


@both
def test_the_safeguard_never_lets_energy_rise_above_its_bound(source: str) -> None:
    compass, (x_t, logits) = PairEnergy(V + 1, size=3.0), scene(source, 200)
    t, h = torch.full((200,), 0.5, dtype=torch.float64), torch.full((200,), 0.25, dtype=torch.float64)
    rows = torch.arange(200)
    for epsilon in (0.0, 0.1, 2.0):
        settings = replace(SETTINGS, epsilon=epsilon)
        chosen = policy_from("sequence", flow_of(source), settings=settings, compass=compass)
        full = policy_from("sequence-to-token", flow_of(source), settings=settings, compass=compass)
        best, kept = (p(x_t, logits, t, h, noise(rows)) for p in (chosen, full))
        assert bool((compass.energy(kept) <= compass.energy(best) + epsilon).all())
        assert not torch.equal(best, kept)


def test_the_lowest_of_k_is_lower_than_blind() -> None:
    """What navigation is for, and that the random control does not do it."""
    compass, (x_t, logits) = PairEnergy(V), scene("uniform", 400)
    t, h = torch.full((400,), 0.5, dtype=torch.float64), torch.full((400,), 0.25, dtype=torch.float64)
    rows, energy = torch.arange(400), {}
    for name in ("blind", *POLICIES):
        policy = policy_from(name, flow_of("uniform"), settings=SETTINGS, compass=compass)
        energy[name] = compass.energy(policy(x_t, logits, t, h, noise(rows))).mean().item()
    control = policy_from("sequence", flow_of("uniform"), settings=replace(SETTINGS, selector="random"))
    energy["random"] = compass.energy(control(x_t, logits, t, h, noise(rows))).mean().item()
    assert energy["sequence"] < energy["blind"] - 1
    assert energy["sequence-to-token"] < energy["blind"] - 1
    assert energy["token"] < energy["blind"]
    assert abs(energy["random"] - energy["blind"]) < 0.4


@navigated
def test_the_random_control_asks_nobody(name: str) -> None:
    compass = PairEnergy(V)
    settings = replace(SETTINGS, selector="random", epsilon=0.0)
    stats = Stats(K)
    (x_t, logits), (t, h) = scene("uniform", B), times()
    made = [
        policy_from(name, flow_of("uniform"), settings=settings, compass=c, stats=stats)(x_t, logits, t, h, noise())
        for c in (None, compass)
    ]
    assert torch.equal(*made)
    assert (compass.scored, stats.scored) == (0, 0)
    if name != "sequence":
        assert stats.summary()["nav/accept"] == 1.0
    with pytest.raises(UserError, match="compass"):
        policy_from(name, flow_of("uniform"), settings=SETTINGS)


@both
@pytest.mark.parametrize("name", ["blind", *POLICIES])
def test_held_positions_stay(source: str, name: str) -> None:
    (x_t, logits), (t, h) = scene(source, B), times()
    for held in (torch.arange(L) < 2, torch.rand(B, L, generator=torch.Generator().manual_seed(0)) < 0.4):
        seen = []

        class Watching(PairEnergy):
            def energy(self, x: torch.Tensor, seen: list[torch.Tensor] = seen) -> torch.Tensor:
                seen.append(x)
                return super().energy(x)

        policy = policy_from(name, flow_of(source), settings=SETTINGS, compass=Watching(V + 1), held=held)
        out, kept = policy(x_t, logits, t, h, noise()), held.expand(B, L)
        assert torch.equal(out[kept], x_t[kept])
        assert not torch.equal(out, x_t)
        above = (t >= SETTINGS.tau).nonzero()[:, 0]
        for states in seen:  # what is scored has the held tokens in place
            each = states.view(len(above), -1, L)
            where = kept[above][:, None].expand_as(each)
            assert torch.equal(each[where], x_t[above][:, None].expand_as(each)[where])


def test_policies_are_jumps_and_solve_takes_them() -> None:
    """Guided generation: exact NFE, K + 1 compass calls a navigated step, given tokens in place, no [MASK] left."""
    for source in ("uniform", "mask"):
        compass, stats = PairEnergy(V + 1), Stats(K)
        logits = scene(source, 8)[1]
        given = torch.arange(L) == 2
        policy = policy_from(
            "sequence-to-token", flow_of(source), settings=SETTINGS, compass=compass, stats=stats, held=given
        )
        assert isinstance(policy, Jump)
        rows = torch.arange(8)
        x_0 = policy.source.draw((8, L), noise(rows), rows.device)
        x_0[:, 2] = 4
        made = solve(
            lambda x, t, h, logits=logits: logits,
            x_0,
            8,
            policy,
            noise(rows),
            given=given,
            given_tokens=torch.full((L,), 4),
        )
        assert made.nfe == 8
        assert stats.scored == compass.scored == 8 * 6 * (K + 1)  # steps at 2/8 … 7/8
        assert bool((made.tokens < V).all())
        assert bool((made.tokens[:, 2] == 4).all())


def test_what_is_counted() -> None:
    compass, stats = PairEnergy(V), Stats(K, probe=True)
    (x_t, logits), (t, h) = scene("uniform", B), times()
    full = policy_from("sequence-to-token", flow_of("uniform"), settings=SETTINGS, compass=compass, stats=stats)
    out = full(x_t, logits, t, h, noise())
    scored = compass.scored
    best = policy_from("sequence", flow_of("uniform"), settings=SETTINGS, compass=compass)(x_t, logits, t, h, noise())
    loose = policy_from(
        "sequence-to-token", flow_of("uniform"), settings=replace(SETTINGS, epsilon=1e9), compass=compass
    )
    refined = loose(x_t, logits, t, h, noise())
    blind = Blind(flow_of("uniform"))(x_t, logits, t, h, noise())
    above = t >= SETTINGS.tau
    n = int(above.sum())
    change = (compass.energy(refined) - compass.energy(best))[above]
    ok = change <= SETTINGS.epsilon
    assert 0 < int(ok.sum()) < n
    found = stats.summary()
    assert stats.midpoints == B
    assert stats.scored == n * (K + 1) == scored - n  # the probe's own calls are not the method's
    expected = {
        "navigated": n / B,
        "accept": ok.double().mean().item(),
        "jumped": (best != x_t)[above].sum().item() / n,
        "replaced": (refined != best)[above].sum().item() / n,
        "delta_e_accepted": change[ok].mean().item(),
        "delta_e_rejected": change[~ok].mean().item(),
        "energy_blind": compass.energy(blind)[above].mean().item(),
        "energy_navigated": compass.energy(out)[above].mean().item(),
        "scored": K + 1.0,
    }
    for name, value in expected.items():
        assert found[f"nav/{name}"] == pytest.approx(value, rel=1e-9), name
    assert sum(found[f"nav/pick_{c}"] for c in range(1, K + 1)) == pytest.approx(1.0)
    assert 0 < found["nav/diversity"] < 1
    assert found["nav/spread"] > 0
    means = {name: float(x) for name, x in stats.mean(3 * B, torch.device("cpu")).items()}
    again = readable({**means, "loss": 2.0})  # a third of the midpoints a step: the ratios do not notice
    assert again["loss"] == 2.0
    assert again["nav/accept"] == pytest.approx(found["nav/accept"])
    assert again["nav/navigated"] == pytest.approx(found["nav/navigated"] / 3)
    assert readable({"loss": 1.0}) == {"loss": 1.0}


def test_statistics_have_the_same_names_when_nothing_happened() -> None:
    full, empty = Stats(K), Stats(K)
    (x_t, logits), (t, h) = scene("uniform", B), times()
    policy_from("token", flow_of("uniform"), settings=SETTINGS, compass=PairEnergy(V), stats=full)(
        x_t, logits, t, h, noise()
    )
    cpu = torch.device("cpu")
    assert full.mean(B, cpu).keys() == empty.mean(B, cpu).keys()
    assert all(float(x) == 0 for x in empty.mean(B, cpu).values())


def test_diversity() -> None:
    states = torch.tensor([[[0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 5, 4]]])
    assert diversity(states).item() == pytest.approx((0.25 + 0.5 + 0.25) / 3)
    assert diversity(states[:, :1]).item() == 0


def test_candidates_stop_when_energies_agree() -> None:
    (x_t, logits), (t, h) = scene("uniform", B), times()
    above = int((t >= SETTINGS.tau).sum())

    def run(compass: PairEnergy, agree: float) -> tuple[torch.Tensor, int]:
        policy = policy_from("sequence", flow_of("uniform"), settings=replace(SETTINGS, agree=agree), compass=compass)
        return policy(x_t, logits, t, h, noise()), compass.scored

    _, scored = run(PairEnergy(V, size=0.0), 0.1)
    assert scored == 2 * above  # two that agree are enough
    always, scored = run(PairEnergy(V), 0.0)
    assert scored == K * above
    for agree in (1e-9, 1.0, 1e9):
        states, energies = all_candidates(x_t, logits, t, h)
        count = [2] * above
        for i, row in enumerate(energies.tolist()):
            while count[i] < K and max(row[: count[i]]) - min(row[: count[i]]) > agree:
                count[i] += 1
        best = torch.stack([states[i, energies[i, :c].argmin()] for i, c in enumerate(count)])
        found, scored = run(PairEnergy(V), agree)
        assert torch.equal(found[t >= SETTINGS.tau], best)
        assert scored == sum(count)
    assert not torch.equal(found, always)


def all_candidates(
    x_t: torch.Tensor, logits: torch.Tensor, t: torch.Tensor, h: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The K candidates of the rows above τ, and their energies."""
    rows = (t >= SETTINGS.tau).nonzero()[:, 0]
    warmth = temperatures(mean_entropy(logits, rows), len(rows), V, SETTINGS)
    u = torch.tensor([numbers_of(7, i, L, K)[CANDIDATES] for i in rows.tolist()], dtype=torch.float64)
    free = torch.ones_like(x_t, dtype=torch.bool)
    states = candidates(flow_of("uniform"), x_t, logits, t, h, rows, warmth, u, free)
    return states, PairEnergy(V).energy(states.flatten(0, 1)).view(len(rows), K)


def test_a_jump_that_starts_at_tau_is_navigated() -> None:
    x_t, logits = scene("uniform", 3)
    t, h = torch.tensor([0.25, 0.25 - 2**-20, 0.5], dtype=torch.float64), torch.full((3,), 0.25, dtype=torch.float64)
    compass = PairEnergy(V)
    policy = policy_from("sequence", flow_of("uniform"), settings=replace(SETTINGS, tau=0.25), compass=compass)
    policy(x_t, logits, t, h, noise(torch.arange(3)))
    assert compass.scored == 2 * K


def test_unknown_policy() -> None:
    with pytest.raises(UserError, match="unknown policy"):
        policy_from("coarse", flow_of("uniform"))
