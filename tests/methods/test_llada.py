"""LLaDA and Dream: losses by hand, weights by brute force, the bound, short rows, and a training played to its end."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import shutil
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import tsdfm
from tsdfm import kernels
from tsdfm.cli import main
from tsdfm.engine.settings import LoopSettings, OptimSettings
from tsdfm.errors import UserError
from tsdfm.flow import Cosine, Mask, Polynomial, RowNoise, Uniform, elbo_rows
from tsdfm.flow.elbo import exact_rows
from tsdfm.flow.logits import carried_over
from tsdfm.kernels.fused import fused_loss
from tsdfm.methods import method
from tsdfm.methods.dream import DreamLoss, DreamSettings
from tsdfm.methods.llada import LLaDALoss, LLaDASettings
from tsdfm.methods.mdlm import MDLMLoss
from tsdfm.nn.settings import NetSettings
from tsdfm.nn.velocity import VelocitySpec
from tsdfm.store.checkpoint import load_weights
from tsdfm.store.manifest import read_manifest
from tsdfm.tokens.loader import Batch

V, SOURCE, LINE = 5, Mask(5), Polynomial(1.0)
made = torch.Generator().manual_seed(0)
LOGITS = 2 * torch.randn(4, 9, V, generator=made, dtype=torch.float64)
X_1 = torch.randint(0, V, (4, 9), generator=made)
X_T = torch.where(torch.rand(X_1.shape, generator=made) < 0.5, X_1, V)
X_T[3] = V  # a row of which nothing is known
TIMES = torch.tensor([0.0, 0.3, 0.75, 0.9], dtype=torch.float64)


def cart(b: int, n: int) -> float:
    """½ Σ over known i of 0.3·0.7^(|n−i|−1), as it is written."""
    return 0.5 * math.fsum(0.3 * 0.7 ** (abs(n - i) - 1) for i in range(9) if int(X_T[b, i]) != V)


BY_HAND = {
    "llada": (LLaDALoss(LINE, SOURCE), lambda b, n: 1 / (1 - float(TIMES[b]))),
    "dream": (DreamLoss(LINE, SOURCE, cart=0.3, floor=0.1), lambda b, n: max(cart(b, n), 0.1)),
    "dream without a floor": (DreamLoss(LINE, SOURCE, cart=0.3, floor=0.0), cart),
}


@pytest.mark.parametrize("which", BY_HAND)
def test_loss_and_gradient_by_hand(which: str) -> None:
    """Σ over masks of w·(−log p)/(B·L); its gradient by a logit is w·(p − 1{it is x_1})/(B·L)."""
    loss, weight = BY_HAND[which]
    logits = LOGITS.clone().requires_grad_()
    found = loss.plain(logits, X_1, X_T, TIMES)
    found.backward()
    total, slope = 0.0, torch.zeros_like(LOGITS)
    for b, n in itertools.product(range(4), range(9)):
        if int(X_T[b, n]) != V:
            continue
        p = LOGITS[b, n].exp() / LOGITS[b, n].exp().sum()
        total -= weight(b, n) * math.log(float(p[X_1[b, n]])) / 36
        slope[b, n] = weight(b, n) * (p - torch.nn.functional.one_hot(X_1[b, n], V)) / 36
    assert found.item() == pytest.approx(total, rel=1e-12)
    torch.testing.assert_close(logits.grad, slope, rtol=1e-10, atol=1e-14)
    assert (slope[3] == 0).all() == (which == "dream without a floor")  # what CART makes of an all-mask row


@pytest.mark.parametrize("which", ["llada", "dream"])
def test_fused_is_plain(which: str) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loss = BY_HAND[which][0]
    head = torch.nn.Linear(6, V).to(device)
    hidden = torch.randn(4, 9, 6, generator=torch.Generator().manual_seed(1)).to(device)
    x_1, x_t, t = (x.to(device) for x in (X_1, X_T, TIMES))
    whole = loss.plain(head(hidden), x_1, x_t, t)
    objective, weight = loss.fused(x_1, x_t, t)
    scale = (weight / X_1.numel()).expand(-1, 9).flatten()
    for forced in (False, True):
        with kernels.forced() if forced else kernels.without():
            found = fused_loss(hidden.flatten(0, 1), head, objective, scale)
        assert found.item() == pytest.approx(whole.item(), rel=1e-5)


@pytest.mark.parametrize("schedule", [LINE, Polynomial(2.0), Cosine()])
def test_the_masks_have_lladas_law(schedule: Any) -> None:
    """1 − κ(t) = (1−ε)u + ε for even u, whatever the schedule; with κ = t the loss is MDLM's at the same times."""
    loss = LLaDALoss(schedule, SOURCE, epsilon=0.2)
    p = schedule.remaining(loss.times(torch.arange(1000), 3)).sort().values
    assert 0.2 <= p.min() < 0.202
    torch.testing.assert_close(p, torch.linspace(0.2, 1.0, 1000, dtype=torch.float64), rtol=0, atol=0.003)
    if schedule == LINE:
        mine, theirs = (kind(LINE, SOURCE).plain(LOGITS, X_1, X_T, TIMES) for kind in (LLaDALoss, MDLMLoss))
        assert mine.item() == pytest.approx(theirs.item(), rel=1e-12)


def test_cart_of_everything_but_one_is_one() -> None:
    x_t = torch.zeros(1, 401, dtype=torch.int64)
    x_t[0, 200] = V
    weight = DreamLoss(LINE, SOURCE).weight(x_t, TIMES[:1])
    assert weight[0, 200].item() == pytest.approx(1.0, rel=1e-12)
    assert weight.count_nonzero() == 1


class Table:
    """Logits that depend on all that is known, so that the order matters."""

    weights = torch.randn(3, V + 1, 3, V, generator=torch.Generator().manual_seed(4), dtype=torch.float64)

    def __call__(self, x_t: torch.Tensor, t: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.weights[i, x_t[:, i]] for i in range(3)]).sum(0)


def test_the_bound_by_exact_numbers_of_masks() -> None:
    """It estimates the mean over orders of Σ −log p(token | what came before): all 3! of them, by hand."""
    x_1 = torch.tensor([2, 0, 4])
    orders, table = list(itertools.permutations(range(3))), Table()
    total = 0.0
    for order in orders:
        state = torch.full((1, 3), V)
        for i in order:
            total -= table(state, TIMES, TIMES)[0, i].log_softmax(-1)[x_1[i]].item()
            state[0, i] = x_1[i]
    exact, copies = total / len(orders) / 3, 4000
    rows = x_1.expand(copies, 3)
    found = exact_rows(table, rows, LINE, SOURCE, 3, RowNoise(0, torch.arange(copies)))
    error = found.std().item() / math.sqrt(copies)
    assert found.mean().item() == pytest.approx(exact, abs=4 * error)
    plain = elbo_rows(
        lambda x, t, h: carried_over(table(x, t, h), x, SOURCE),
        rows,
        LINE,
        SOURCE,
        3,
        RowNoise(1, torch.arange(copies)),
    )
    assert plain.mean().item() == pytest.approx(exact, abs=4 * plain.std().item() / math.sqrt(copies))
    assert found.std() < plain.std()
    given = torch.tensor([True, False, True])  # one free position: it is masked, and nothing is left to chance
    alone = exact_rows(table, rows[:2], LINE, SOURCE, 4, RowNoise(0, torch.arange(2)), given=given)
    state = torch.tensor([[2, V, 4]])
    assert alone.tolist() == pytest.approx([-table(state, TIMES, TIMES)[0, 1].log_softmax(-1)[0].item()] * 2)
    with pytest.raises(UserError, match="mask source"):
        exact_rows(table, rows, LINE, Uniform(V), 3, RowNoise(0, torch.arange(copies)))


def spec_of(name: str, **more: Any) -> VelocitySpec:
    shape = NetSettings(width=16, depth=1, heads=2, cond=8, dropout=0.0).shape()
    plain: dict[str, Any] = {"vocab": V, "source": "mask", "schedule": "poly:1", "length": 12, "anchor": 1}
    return VelocitySpec(shape=shape, tokenizer="", **{**plain, **method(name).words(), **more})


class Seen(torch.nn.Module):
    """A network that remembers what it was asked."""

    def forward(self, x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        self.x_t, self.t = x_t, t
        return torch.zeros(*x_t.shape, V)


def test_some_batches_are_cut_to_a_random_length() -> None:
    """All rows of a step to one length, its beginning kept, on every process; what is cut off is not even seen."""
    settings = LLaDASettings(tokens=Path("t"), out=Path("o"), short=0.5, loop=LoopSettings(seed=5, batch=4))
    task = method("llada").task(settings, spec_of("llada"), None)  # type: ignore[attr-defined]
    tokens = torch.randint(0, V, (4, 12), generator=torch.Generator().manual_seed(1))
    lengths = list[int]()
    for step in range(40):
        model, part = Seen(), Seen()
        task.loss(model, Batch(tokens, torch.arange(4)), step)
        task.loss(part, Batch(tokens[2:], torch.arange(2, 4)), step)  # another process's rows
        lengths.append(model.x_t.shape[1])
        assert part.x_t.shape[1] == lengths[-1]
        assert model.t.eq(0).all()  # the network is not told the time
        assert ((model.x_t == V) | (model.x_t == tokens[:, : lengths[-1]])).all()
        assert torch.equal(model.x_t[:, 0], tokens[:, 0])
    assert lengths == [1 + task.objective.length(11, step, 5) for step in range(40)]
    found = Counter(task.objective.length(11, step, 0) for step in range(4400))
    assert all(abs(found[length] - 200) < 70 for length in range(1, 11))  # half of the batches, every length alike
    assert LLaDALoss(LINE, SOURCE, short=0.0).length(11, 0, 0) == 11


def test_shifted_answers_are_read_off_the_position_before() -> None:
    """The same weights without the shift give the same answers one position earlier; gradients follow."""
    spec = spec_of("dream")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        shifted, plain = spec.network(), dataclasses.replace(spec, shift=False).network()
    for weight in shifted.parameters():
        torch.nn.init.normal_(weight, std=0.3, generator=torch.Generator().manual_seed(weight.numel()))
    plain.load_state_dict(shifted.state_dict())
    x, t = torch.randint(0, V + 1, (3, 12), generator=torch.Generator().manual_seed(2)), torch.zeros(3)
    wanted = plain(x, t)
    assert torch.equal(shifted(x, t), torch.cat([wanted[:, :1], wanted[:, :-1]], 1))
    (by_shifted,) = torch.autograd.grad(shifted(x, t)[:, 5].square().sum(), [shifted.embedding.weight])
    (by_plain,) = torch.autograd.grad(plain(x, t)[:, 4].square().sum(), [plain.embedding.weight])
    assert torch.equal(by_shifted, by_plain)
    assert "shift" not in spec_of("llada").identity()
    assert spec.identity()["shift"] is True
    with pytest.raises(UserError, match="has shift True, this model has False"):
        spec_of("llada").match(spec, "the other")


def test_settings_that_make_no_sense() -> None:
    for kind, wrong in (
        (LLaDASettings, {"epsilon": 0.0}),
        (LLaDASettings, {"short": 1.5}),
        (DreamSettings, {"cart": 1.0}),
        (DreamSettings, {"floor": -0.1}),
    ):
        with pytest.raises(UserError):
            kind(tokens=Path("t"), out=Path("o"), **wrong)


@pytest.fixture(scope="module", params=["llada", "dream"])
def trained(request: pytest.FixtureRequest, tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A short training, some batches of it cut short."""
    found = method(request.param)
    settings = found.settings(
        tokens=tokens,
        out=tmp_path_factory.mktemp(request.param) / "run",
        eval_rows=16,
        eval_times=4,
        short=0.1,
        net=NetSettings(width=32, depth=2, heads=2, cond=16, dropout=0.0),
        loop=LoopSettings(steps=60, batch=16, device="cpu", eval_every=30, save_every=30, log_every=10),
        optim=OptimSettings(lr=5e-3, warmup=5, ema=0.9),
    )
    found.train(settings)
    return settings


def named(trained: Any) -> str:
    return "dream" if isinstance(trained, DreamSettings) else "llada"


def test_it_learns_and_says_what_it_is(trained: Any) -> None:
    lines = [json.loads(line) for line in (trained.out / "metrics.jsonl").read_text().splitlines()]
    bounds = [line["elbo"] for line in lines if "elbo" in line]
    assert bounds[-1] < bounds[0] < math.log(400)
    manifest = read_manifest(trained.out)
    assert (manifest["stage"], manifest["bound"]) == (named(trained), "NELBO, exact mask counts")
    model, shift = manifest["model"], named(trained) == "dream"
    assert (model["method"], model["logits"], model["time"], model["shift"]) == (named(trained), "subs", False, shift)


def test_a_resumed_run_is_the_unbroken_one(trained: Any, tmp_path: Path) -> None:
    out = tmp_path / "part"
    shutil.copytree(trained.out, out)
    shutil.rmtree(out / "checkpoints" / "step-00000060")
    method(named(trained)).train(dataclasses.replace(trained, out=out, resume=True))
    for which in ("model", "ema"):
        mine, theirs = load_weights(out, which), load_weights(trained.out, which)
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


JUMPS = (
    "auto",
    "llada:8",
    "llada-random",
    "dream-maskgit:0.2",
    "dream-margin",
    "dream-entropy",
    "eb:0.5",
    "cumulative",
)


@pytest.mark.parametrize("jump", JUMPS)
def test_it_writes_by_every_order(trained: Any, jump: str) -> None:
    """A prefix is kept, nothing is taken back, no mask is left, and text i depends on the seed and i alone."""
    model = tsdfm.load(trained.out, "cpu")
    made = model.sample(n=3, steps=6, seed=1, prefix="Mia", jump=jump, trajectory=True)
    assert made.trajectory is not None
    assert (made.passes == [6, 6, 6]) or jump.startswith("eb")
    assert len(made.trajectory.rows[0].steps) == made.trajectory.steps == max(made.passes)
    for row in made.trajectory.rows:
        for (before, _), (after, _) in pairwise(row.states()):
            assert all(a == b for b, a in zip(before, after, strict=True) if b != made.trajectory.mask)
    assert all(text.startswith("Mia") for text in made.texts)
    assert int(made.tokens.max()) < model.velocity.spec.vocab
    one = model.sample(n=1, steps=6, seed=1, prefix="Mia", jump=jump, first=2)  # by some logits instead of all
    assert torch.equal(one.tokens[0], made.tokens[2])
    assert one.passes == made.passes[2:]
    filled = model.sample(n=2, steps=6, infill="Mia has {3} balls.", jump=jump, temperature=0.5, top_p=0.9)
    assert all(text.startswith("Mia has ") and " balls." in text for text in filled.texts)


def test_passes_are_an_outcome_of_each_text(trained: Any, tmp_path: Path) -> None:
    """Batches end at different steps; records, trajectory and the mean tell the passes that were made."""
    model = tsdfm.load(trained.out, "cpu")
    asked: dict[str, Any] = {
        "prefix": ["Mia", "Mia has a red ball and a blue ball in her"],
        "jump": "eb:9",
        "steps": 39,
    }
    made = model.sample(n=2, batch=1, trajectory=True, **asked)
    assert made.nfe == sum(made.passes) / 4
    assert len({*made.passes}) > 1
    assert model.sample(n=2, **asked).passes == made.passes  # in one batch as well
    assert [record["nfe"] for record in made.records()] == made.passes
    way = made.trajectory
    assert way is not None
    assert (way.steps, way.nfe) == (max(made.passes), made.nfe)
    again = tsdfm.samples.trajectory.Trajectory.load(way.save(tmp_path / "way.json"))
    assert [len(row.steps) for row in again.rows] == [way.steps] * 4
    slow = model.sample(n=2, **{**asked, "jump": "eb:0"})  # one token a pass
    assert slow.passes == [40 - len(row.given) for row in way.rows]


def test_guidance_and_what_is_refused(trained: Any, capsys: pytest.CaptureFixture[str]) -> None:
    model = tsdfm.load(trained.out, "cpu")
    plain, guided = (model.sample(n=4, steps=4, prefix="Mia has", cfg=cfg) for cfg in (0.0, 2.0))
    assert (plain.nfe, guided.nfe) == (4, 8)
    assert all(text.startswith("Mia has") for text in guided.texts)
    assert not torch.equal(plain.tokens, guided.tokens)
    words = ["sample", str(trained.out), "--n", "1", "--steps", "4", "--device", "cpu"]
    for more, said in (
        (["--jump", "llada:7"], "blocks of 7 tokens do not divide a row of 40"),
        (["--jump", "llada:4"], "10 blocks to write and 4 steps"),
        (["--jump", "dream-origin:1"], "takes no such dial"),
        (["--jump", "eb:x"], "takes no such dial"),
        (["--cfg", "1"], "give a prefix or an infill template"),
        (["--cfg", "-1", "--prefix", "Mia"], "at least 0"),
    ):
        assert main([*words, *more]) == 2
        error = capsys.readouterr().err.strip()
        assert said in error
        assert len(error.splitlines()) == 1


def test_by_the_command_line_and_played(trained: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    way = tmp_path / "way.json"
    words = ["sample", str(trained.out), "--n", "2", "--steps", "5", "--device", "cpu", "--prefix", "Mia"]
    assert main([*words, "--jump", "eb:9", "--cfg", "0.5", "--save-trajectory", str(way)]) == 0
    assert "passes" in capsys.readouterr().out
    assert main(["view", str(way), "--terminal"]) == 0
    assert main(["train", "eb"]) == 2
    assert "a way to sample" in capsys.readouterr().err
