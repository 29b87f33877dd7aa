"""Writing in an order: laws against brute force, counts by row, blocks, entropy bounds, guidance, given positions."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tsdfm.errors import UserError
from tsdfm.flow import ClassifierFree, Mask, Polynomial, RowNoise, Step, Uniform, jump_from, solve
from tsdfm.methods import method

V, SOURCE, LINE = 3, Mask(3), Polynomial(1.0)
N = 20_000
JUMPS = {name: maker for each in ("llada", "dream", "eb") for name, maker in method(each).jumps().items()}
LOGITS = 1.5 * torch.randn(4, V, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
P = LOGITS.softmax(-1)


def noise(rows: int, seed: int = 0) -> RowNoise:
    return RowNoise(seed, torch.arange(rows))


def fixed(rows: int, logits: torch.Tensor = LOGITS) -> Callable[..., torch.Tensor]:
    return lambda x, t, h: logits.expand(rows, *logits.shape)


class Lively:
    """Logits that depend on the whole row, also in parts: a `PartialModel`."""

    table = torch.randn(V + 1, V, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def __call__(self, x: torch.Tensor, t: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        here = self.table[x]
        return here + here.mean(1, keepdim=True) + 0.3 * torch.arange(x.shape[1])[:, None] % 1.1

    def look(self, x: torch.Tensor, t: torch.Tensor, h: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        flat = self(x, t, h).flatten(0, 1)
        return lambda places: flat[places]


def way(name: str, rows: int, length: int, steps: int, *, dial: Any = None, model: Any = None, **more: Any) -> Any:
    """The solution, and which positions [B, L] each step revealed."""
    jump = JUMPS[name](LINE, SOURCE, *([] if dial is None else [dial]))
    seen = list[torch.Tensor]()

    def watch(step: Step) -> None:
        known = step.before != V
        assert torch.equal(step.after[known], step.before[known])  # nothing that is written moves
        seen.append((step.before == V) & (step.after != V))

    x_0 = torch.full((rows, length), V)
    done = solve(model or Lively(), x_0, steps, jump, noise(rows), on_step=watch, **more)
    assert bool((done.tokens < V).all())
    return done, torch.stack(seen)


def prompts(counts: list[int], length: int) -> dict[str, torch.Tensor]:
    """Rows of which all but so many positions, here and there, are given."""
    order = torch.rand(len(counts), length, generator=torch.Generator().manual_seed(5)).argsort(-1)
    held = order >= torch.tensor(counts)[:, None]
    return {"given": held, "given_tokens": torch.randint(0, V, held.shape, generator=torch.Generator().manual_seed(6))}


def fits(found: Counter[Any], law: dict[Any, float], most: float) -> None:
    """Chi-square of what was found against a law."""
    total = sum(found.values())
    assert set(found) <= {key for key, p in law.items() if p > 0}
    assert sum((found[key] - total * p) ** 2 / (total * p) for key, p in law.items() if p > 0) < most


def one_step(name: str, dial: Any, steps: int) -> Counter[tuple[int, ...]]:
    """What N all-mask rows are after the first of so many steps."""
    jump = JUMPS[name](LINE, SOURCE, *([] if dial is None else [dial]))
    x_0, states = torch.full((N, 4), V), list[torch.Tensor]()
    solve(fixed(N), x_0, steps, jump, noise(N, 1), on_state=lambda _, t, x: states.append(x.clone()))
    return Counter(map(tuple, states[0].tolist()))


def brute(choose: Callable[[tuple[int, ...]], dict[frozenset[int], float]]) -> dict[tuple[int, ...], float]:
    """The law of the state after a step: all draws, and for each the law of the set that is kept."""
    law = dict[tuple[int, ...], float]()
    for drawn in itertools.product(range(V), repeat=4):
        chance = math.prod(P[i, token].item() for i, token in enumerate(drawn))
        for kept, share in choose(drawn).items():
            state = tuple(token if i in kept else V for i, token in enumerate(drawn))
            law[state] = law.get(state, 0.0) + chance * share
    assert math.isclose(sum(law.values()), 1.0, rel_tol=1e-9)
    return law


def surest(scores: list[float], count: int) -> dict[frozenset[int], float]:
    return {frozenset(sorted(range(4), key=lambda i: -scores[i])[:count]): 1.0}


def plackett_luce(scores: list[float], count: int, tau: float) -> dict[frozenset[int], float]:
    """Draws without replacement ∝ e^{score/τ}."""
    out = dict[frozenset[int], float]()
    weights = [math.exp(score / tau) for score in scores]
    for order in itertools.permutations(range(4), count):
        chance, left = 1.0, sum(weights)
        for i in order:
            chance, left = chance * weights[i] / left, left - weights[i]
        out[frozenset(order)] = out.get(frozenset(order), 0.0) + chance
    return out


MARGIN = [float(p[0] - p[1]) for p in P.sort(-1, descending=True).values]
ENTROPY = [float((p * p.log()).sum()) for p in P]
EVENLY = {frozenset(pair): 1 / 6 for pair in itertools.combinations(range(4), 2)}
LAWS: dict[str, tuple[str, Any, Callable[[tuple[int, ...]], dict[frozenset[int], float]]]] = {
    "llada": ("llada", None, lambda drawn: surest([float(P[i, x]) for i, x in enumerate(drawn)], 2)),
    "llada in blocks": ("llada", 2, lambda drawn: {frozenset({0, 1}): 1.0}),
    "random": ("llada-random", None, lambda drawn: EVENLY),
    "maskgit": ("dream-maskgit", 0.0, lambda drawn: surest([float(P[i, x]) for i, x in enumerate(drawn)], 2)),
    "margin": ("dream-margin", None, lambda drawn: surest(MARGIN, 2)),
    "entropy": ("dream-entropy", None, lambda drawn: surest(ENTROPY, 2)),
    "entropy, tempered": ("dream-entropy", 0.3, lambda drawn: plackett_luce(ENTROPY, 2, 0.3)),
    "maskgit, tempered": (
        "dream-maskgit", 0.2, lambda drawn: plackett_luce([float(P[i, x]) for i, x in enumerate(drawn)], 2, 0.2),
    ),
    "origin": (
        "dream-origin",
        None,
        lambda drawn: {frozenset(kept): 1 / 16 for n in range(5) for kept in itertools.combinations(range(4), n)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("which", LAWS)
def test_the_law_of_a_step(which: str) -> None:
    """Half of four masks, on three tokens, against all that can happen."""
    name, dial, choose = LAWS[which]
    law = brute(choose)
    fits(one_step(name, dial, 2), law, most=len(law) + 5 * math.sqrt(2 * len(law)))


def test_origin_is_the_ancestral_step() -> None:
    made = [
        solve(Lively(), torch.full((40, 7), V), 5, jump, noise(40)).tokens
        for jump in (JUMPS["dream-origin"](LINE, SOURCE), jump_from("ancestral", LINE, SOURCE))
    ]
    assert torch.equal(*made)


@pytest.mark.parametrize("name", ["llada", "llada-random"])
@pytest.mark.parametrize("steps", [1, 3, 4, 12, 16])
def test_llada_shares_masks_over_steps_by_row(name: str, steps: int) -> None:
    """⌊M/S⌋ each, one more in the first M mod S; a row without masks left is done and counts no pass."""
    masks = [1, 5, 12, 7, 8]
    done, seen = way(name, 5, 12, steps, **prompts(masks, 12))
    for row, count in enumerate(masks):
        wanted = [count // steps + (k < count % steps) for k in range(steps)]
        assert seen[:, row].sum(-1).tolist() == wanted[: len(seen)]
    assert done.passes.tolist() == [min(steps, count) for count in masks]
    assert done.nfe == pytest.approx(sum(min(steps, count) for count in masks) / 5)


@pytest.mark.parametrize("name", ["dream-maskgit", "dream-margin", "dream-entropy"])
def test_dream_counts_each_rows_own_masks(name: str) -> None:
    masks, steps = [1, 5, 12, 7, 8], 6
    _, seen = way(name, 5, 12, steps, **prompts(masks, 12))
    for row, left in enumerate(masks):
        for k in range(len(seen)):
            count = left // (steps - k)  # the last step takes all
            assert int(seen[k, row].sum()) == count
            left -= count
        assert left == 0


def test_whole_numbers_do_not_fall_short() -> None:
    """Eight masks in eight steps are one a step, whatever 1 − 7/8 is in floating point."""
    for steps in (8, 24, 49):
        _, seen = way("dream-entropy", 2, steps, steps)
        assert seen.sum(-1).eq(1).all()


@pytest.mark.parametrize("name", ["llada", "llada-random"])
def test_blocks_go_from_left_to_right(name: str) -> None:
    """Gaps inside what is given belong to their own block; blocks that are given take no step."""
    held = torch.zeros(3, 12, dtype=torch.bool)
    held[1, :5] = True  # the first block, and the beginning of the second
    held[2, [0, 2, 3, 4, 5, 6, 7]] = True  # a gap in the first block, none in the second
    tokens = torch.zeros(12, dtype=torch.int64)
    _, seen = way(name, 3, 12, 6, dial=4, given=held, given_tokens=tokens)
    counts = seen.view(len(seen), 3, 3, 4).sum(-1)  # [steps, rows, blocks]
    assert counts[:, 0].tolist() == [[2, 0, 0], [2, 0, 0], [0, 2, 0], [0, 2, 0], [0, 0, 2], [0, 0, 2]]
    assert counts[:, 1].tolist() == [[0, 1, 0], [0, 1, 0], [0, 1, 0], [0, 0, 2], [0, 0, 1], [0, 0, 1]]
    assert counts[:, 2].tolist() == [[1, 0, 0], [0] * 3, [0] * 3, [0, 0, 2], [0, 0, 1], [0, 0, 1]]


def test_a_block_as_long_as_the_row_is_none() -> None:
    whole, blocks = (way("llada", 6, 12, 5, dial=dial)[0].tokens for dial in (None, 12))
    assert torch.equal(whole, blocks)


def test_blocks_that_cannot_be() -> None:
    with pytest.raises(UserError, match="blocks of 5 tokens do not divide a row of 12"):
        way("llada", 2, 12, 6, dial=5)
    with pytest.raises(UserError, match="6 blocks to write and 4 steps"):
        way("llada", 2, 12, 4, dial=2)
    for wrong in (0, 2.5, -1):
        with pytest.raises(UserError, match="block length"):
            JUMPS["llada"](LINE, SOURCE, wrong)
    with pytest.raises(UserError, match="equal steps"):
        solve(Lively(), torch.full((1, 4), V), (0.0, 0.5, 0.75, 1.0), JUMPS["llada"](LINE, SOURCE), noise(1))


@pytest.mark.parametrize("gamma", [0.0, 0.4, 1.5])
def test_the_entropy_bound_is_kept_and_used(gamma: float) -> None:
    """ΣH − max H ≤ γ of what a step reveals, and one more would break it."""
    rows, length = 12, 8
    jump, states = JUMPS["eb"](LINE, SOURCE, gamma), list[Any]()
    done = solve(Lively(), torch.full((rows, length), V), length, jump, noise(rows), on_step=states.append)
    for step in states:
        p = step.logits.softmax(-1)
        entropy = -(p * p.log()).sum(-1)
        for row in range(rows):
            masked, shown = step.before[row] == V, (step.before[row] == V) & (step.after[row] != V)
            if not masked.any():
                continue
            written = entropy[row, shown].sort().values
            assert written[:-1].sum() <= gamma + 1e-12
            left = entropy[row, masked & ~shown]
            if len(left):
                assert written.sum() > gamma
                assert left.min() >= written[-1]
            if gamma == 0:
                assert int(shown.sum()) == 1
    spent = torch.stack([(step.before == V).any(-1) for step in states]).sum(0)
    assert done.passes.tolist() == spent.tolist()
    assert len(states) == int(spent.max())  # and the walk ends with its last row
    assert done.nfe == (length if gamma == 0 else pytest.approx(spent.double().mean().item()))


def test_the_last_step_finishes_whatever_the_bound() -> None:
    done, seen = way("eb", 4, 8, 3, dial=0.0)
    assert seen.sum(-1).tolist() == [[1] * 4, [1] * 4, [6] * 4]
    assert done.nfe == 3


EVERY = [
    "llada",
    "llada:4",
    "llada-random",
    "dream-origin",
    "dream-maskgit:0.3",
    "dream-margin",
    "dream-entropy",
    "eb:1",
]


def named(name: str) -> Any:
    word, _, dial = name.partition(":")
    return JUMPS[word](LINE, SOURCE, *([float(dial)] if dial else []))


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("dials", [{}, {"temperature": 0.0}, {"temperature": 0.7, "top_p": 0.8}])
def test_rows_are_their_own_and_parts_are_the_whole(name: str, dials: dict[str, float]) -> None:
    """A text does not depend on its batch, given positions never change, and some logits are as good as all."""
    held = prompts([12, 3, 7, 1, 12, 9, 12], 12)

    def write(rows: list[int], **more: Any) -> tuple[list[Any], list[int]]:
        own = {key: value[rows] for key, value in held.items()}
        x_0, numbers = torch.full((len(rows), 12), V), RowNoise(2, torch.tensor(rows))
        done = solve(Lively(), x_0, 6, named(name), numbers, **own, **dials, **more)
        assert torch.equal(done.tokens[own["given"]], own["given_tokens"][own["given"]])
        assert bool((done.tokens < V).all())
        return done.tokens.tolist(), done.passes.tolist()

    tokens, passes = write(list(range(7)))
    for row in (0, 3, 6):
        assert write([row]) == ([tokens[row]], [passes[row]])
    assert write(list(range(7)), on_step=lambda step: None) == (tokens, passes)  # on_step gets all logits


@pytest.mark.parametrize("name", ["llada", "dream-maskgit", "dream-margin", "dream-entropy", "eb"])
def test_at_temperature_0_the_models_own_law_says_what_is_sure(name: str) -> None:
    """The shaped law is certain everywhere; the order must not fall back on places."""
    logits = torch.tensor([[0.5, 0.0, 0.0], [1.0, 0.0, 0.0], [9.0, 0.0, 0.0], [3.0, 0.0, 0.0]]).double()
    _, seen = way(name, 2, 4, 4, model=fixed(2, logits), temperature=0.0, dial=0.0 if name == "eb" else None)
    assert seen.double().argmax(-1)[:, 0].tolist() == [2, 3, 1, 0]


def test_guidance_is_two_passes_mixed() -> None:
    """(1 + w)c − w·u, u without what is given; twice the passes; nothing is changed by w = 0."""
    held = prompts([4, 6], 8)
    known, asked = held["given"], list[torch.Tensor]()

    def model(x: torch.Tensor, t: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        asked.append(x)
        return Lively()(x, t, h)

    x = torch.where(known, held["given_tokens"], V)
    zero = torch.zeros(2)
    c, u = (Lively()(state, zero, zero) for state in (x, torch.where(known, V, x)))
    guided = ClassifierFree(model, 1.5, known, SOURCE)
    torch.testing.assert_close(guided(x, zero, zero), 2.5 * c - 1.5 * u, rtol=1e-12, atol=1e-12)
    assert [state.eq(V).sum().item() for state in asked] == [10, 16]
    places = torch.tensor([3, 8])
    whole = ClassifierFree(Lively(), 1.5, known, SOURCE)
    wanted = (2.5 * c - 1.5 * u).flatten(0, 1)[places]
    for each in (guided, whole):
        torch.testing.assert_close(each.look(x, zero, zero)(places), wanted, rtol=1e-12, atol=1e-12)
    for name in ("llada:4", "eb:1", "dream-entropy"):
        plain, same, other = (
            solve(asked_of, torch.full((2, 8), V), 4, named(name), noise(2), **held)
            for asked_of in (Lively(), ClassifierFree(Lively(), 0.0, known, SOURCE), whole)
        )
        assert torch.equal(same.tokens, plain.tokens)
        assert same.passes.tolist() == [2 * n for n in plain.passes.tolist()]
        assert torch.equal(other.tokens[known], held["given_tokens"][known])


def test_guidance_leaves_the_impossible_impossible() -> None:
    """Logits with SUBS are −inf at what is known: no NaN, and it stays as it is."""
    from tsdfm.flow.logits import carried_over

    def model(x: torch.Tensor, t: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return carried_over(Lively()(x, t, h), x, SOURCE)

    held = prompts([4], 8)
    guided = ClassifierFree(model, 2.0, held["given"], SOURCE)
    done = solve(guided, torch.full((1, 8), V), 4, jump_from("cumulative", LINE, SOURCE), noise(1), **held)
    assert torch.equal(done.tokens[held["given"]], held["given_tokens"][held["given"]])
    assert done.nfe == 8
    for wrong in (-1.0, math.nan, math.inf):
        with pytest.raises(UserError, match="at least 0"):
            ClassifierFree(model, wrong, held["given"], SOURCE)
    with pytest.raises(UserError, match="mask source"):
        ClassifierFree(model, 1.0, held["given"], Uniform(V))


def test_orders_are_for_masks() -> None:
    for name, maker in JUMPS.items():
        with pytest.raises(UserError, match="mask source"):
            maker(LINE, Uniform(V))
        assert name.partition("-")[0] in ("llada", "dream", "eb")
    for name, wrong in (("dream-margin", -0.1), ("eb", -1.0), ("eb", math.nan)):
        with pytest.raises(UserError, match="at least 0"):
            JUMPS[name](LINE, SOURCE, wrong)
