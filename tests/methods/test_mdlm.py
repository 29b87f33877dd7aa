"""MDLM: its bound is the generalised KL with SUBS, its step the cumulative jump that keeps what is revealed."""

from __future__ import annotations

import dataclasses
import math
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import tsdfm
from tsdfm import kernels
from tsdfm.cli import main
from tsdfm.engine.settings import LoopSettings, OptimSettings
from tsdfm.errors import UserError
from tsdfm.flow import Cosine, CumulativeJump, Mask, Polynomial, RowNoise, Schedule, Uniform, generalised_kl, jump_from
from tsdfm.flow.logits import carried_over, meaning_of
from tsdfm.kernels.fused import fused_loss
from tsdfm.methods.mdlm import METHOD, DenoiseJump, MDLMLoss, MDLMSettings
from tsdfm.nn.settings import NetSettings
from tsdfm.store.checkpoint import load_weights
from tsdfm.store.manifest import read_manifest

V, SOURCE = 5, Mask(5)
made = torch.Generator().manual_seed(0)
LOGITS = 2 * torch.randn(4, 9, V, generator=made, dtype=torch.float64)
X_1 = torch.randint(0, V, (4, 9), generator=made)
X_T = torch.where(torch.rand(X_1.shape, generator=made) < 0.5, X_1, V)
TIMES = torch.tensor([0.0, 0.3, 0.75, 1.0], dtype=torch.float64)


@pytest.mark.parametrize("schedule", [Polynomial(1.0), Polynomial(3.0), Cosine()])
def test_the_loss_is_the_generalised_kl_with_subs(schedule: Schedule) -> None:
    mine, theirs = (LOGITS.clone().requires_grad_() for _ in range(2))
    loss = MDLMLoss(schedule, SOURCE).plain(mine, X_1, X_T, TIMES)
    whole = generalised_kl(carried_over(theirs, X_T, SOURCE), X_1, X_T, TIMES, schedule, SOURCE)
    assert loss.item() == pytest.approx(whole.item(), rel=1e-13)
    loss.backward()
    whole.backward()
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-12, atol=1e-14)


def test_the_loss_by_hand() -> None:
    """κ = t: −log p(x_1)/(1 − t) at masked positions, over all positions."""
    t = TIMES.clamp(max=0.9)
    loss = MDLMLoss(Polynomial(1.0), SOURCE).plain(LOGITS, X_1, X_T, t).item()
    total = 0.0
    for b in range(4):
        for i in range(9):
            if int(X_T[b, i]) == V:
                weights = LOGITS[b, i].exp()
                total -= math.log(float(weights[X_1[b, i]] / weights.sum())) / (1 - float(t[b]))
    assert loss == pytest.approx(total / 36, rel=1e-12)


def test_fused_is_plain() -> None:
    """head(hidden) in chunks, and by the kernels, gives the loss of whole logits."""
    device = "cuda" if torch.cuda.is_available() else "cpu"  # there the kernels run for real, here by the interpreter
    head = torch.nn.Linear(6, V).to(device)
    hidden = torch.randn(4, 9, 6, generator=torch.Generator().manual_seed(1)).to(device)
    loss = MDLMLoss(Cosine(), SOURCE)
    x_1, x_t, t = (x.to(device) for x in (X_1, X_T, TIMES.clamp(max=0.9)))
    whole = loss.plain(head(hidden), x_1, x_t, t)
    objective, weight = loss.fused(x_1, x_t, t)
    scale = (weight / X_1.numel()).expand(-1, 9).flatten()
    for forced in (False, True):
        with kernels.forced() if forced else kernels.without():
            found = fused_loss(hidden.flatten(0, 1), head, objective, scale)
        assert found.item() == pytest.approx(whole.item(), rel=1e-5)


def test_subs() -> None:
    p = carried_over(LOGITS, X_T, SOURCE).softmax(-1)
    revealed = X_T != V
    assert torch.equal(p[~revealed], LOGITS.softmax(-1)[~revealed])
    assert torch.equal(p[revealed], torch.nn.functional.one_hot(X_T[revealed], V).double())
    with pytest.raises(UserError, match="mask source"):
        meaning_of("subs", Uniform(V), Cosine())
    with pytest.raises(UserError, match="did you mean"):
        meaning_of("scores", SOURCE, Cosine())


def settings_for(tokens: Path, out: Path) -> MDLMSettings:
    return MDLMSettings(
        tokens=tokens,
        out=out,
        eval_rows=16,
        eval_times=4,
        net=NetSettings(width=32, depth=2, heads=2, cond=16, dropout=0.0),
        loop=LoopSettings(steps=60, batch=16, device="cpu", eval_every=30, save_every=30, log_every=10),
        optim=OptimSettings(lr=5e-3, warmup=5, ema=0.9),
    )


@pytest.fixture(scope="module")
def trained(tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> MDLMSettings:
    settings = settings_for(tokens, tmp_path_factory.mktemp("mdlm") / "run")
    METHOD.train(settings)
    return settings


def test_it_learns_and_says_what_it_is(trained: MDLMSettings) -> None:
    import json

    lines = [json.loads(line) for line in (trained.out / "metrics.jsonl").read_text().splitlines()]
    bounds = [line["elbo"] for line in lines if "elbo" in line]
    assert bounds[-1] < bounds[0] < math.log(400)
    manifest = read_manifest(trained.out)
    assert (manifest["stage"], manifest["bound"]) == ("mdlm", "NELBO")
    model = manifest["model"]
    assert (model["method"], model["logits"], model["time"], model["jump"]) == ("mdlm", "subs", False, "ancestral")


def test_a_resumed_run_is_the_unbroken_one(trained: MDLMSettings, tmp_path: Path) -> None:
    out = tmp_path / "part"
    shutil.copytree(trained.out, out)
    shutil.rmtree(out / "checkpoints" / "step-00000060")
    METHOD.train(dataclasses.replace(trained, out=out, resume=True))
    for which in ("model", "ema"):
        mine, theirs = load_weights(out, which), load_weights(trained.out, which)
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_it_writes_and_never_takes_a_token_back(trained: MDLMSettings) -> None:
    model = tsdfm.load(trained.out, "cpu")
    made = model.sample(n=3, steps=6, seed=1, prefix="Mia", trajectory=True)
    assert made.nfe == 6
    assert made.trajectory is not None
    for row in made.trajectory.rows:
        for (before, _), (after, _) in pairwise(row.states()):
            assert all(a == b for b, a in zip(before, after, strict=True) if b != made.trajectory.mask)
    assert all(text.startswith("Mia") for text in made.texts)
    cumulative = model.sample(n=3, steps=6, seed=1, prefix="Mia", jump="cumulative")
    assert torch.equal(cumulative.tokens, made.tokens)  # SUBS: what is revealed has p(z) = 1, so it stays anyway


def test_noise_removal_is_one_pass_more_and_next_to_nothing(trained: MDLMSettings, tmp_path: Path) -> None:
    """Its last step leaves one mask in 10⁵ or so, which the last pass fills with the likeliest token."""
    model = tsdfm.load(trained.out, "cpu")
    plain = model.sample(n=3, steps=6, seed=1, prefix="Mia")
    made = model.sample(n=3, steps=6, seed=1, prefix="Mia", jump="ancestral-denoise", trajectory=True)
    assert torch.equal(made.tokens, plain.tokens)  # no draw of these texts fell into the last 10⁻⁵
    assert made.nfe == 7
    assert made.trajectory is not None
    made.trajectory.save(tmp_path / "way.json")
    assert main(["view", str(tmp_path / "way.json"), "--terminal"]) == 0
    jump = jump_from("ancestral-denoise", Polynomial(1.0), SOURCE)
    t, h = (torch.full((1,), value, dtype=torch.float64) for value in (1 - 1e-4, 1e-4))
    logits, rows = torch.tensor([0.0, 2.0, 1.0, 0.0, 0.0]).expand(1, 5000, V), torch.full((1, 5000), V)
    left = jump(rows, logits, t, h, RowNoise(0, torch.arange(1))) == V
    assert left.double().mean().item() == pytest.approx(0.1, abs=0.02)  # 10⁻⁵ of 10⁻⁴
    assert isinstance(jump, DenoiseJump)
    finished = jump.finish(torch.tensor([[V, 3]]), logits[:, :2], RowNoise(0, torch.arange(1)))
    assert finished.tolist() == [[1, 3]]
    with pytest.raises(UserError, match="mask source"):
        jump_from("ancestral-denoise", Polynomial(1.0), Uniform(V))


def test_the_cumulative_jump_that_keeps_what_is_revealed_is_the_ancestral_step() -> None:
    """By its law: a [MASK] becomes y with p(y)·(κ(s) − κ(t))/(1 − κ(t)); and what is revealed stays, SUBS or not."""
    jump, rows = CumulativeJump(Cosine(), SOURCE, keep_revealed=True), 20_000
    t, h = (torch.full((rows,), value, dtype=torch.float64) for value in (0.3, 0.4))
    logits = LOGITS[0, :2].expand(rows, 2, V)
    moved = jump(torch.tensor([[V, 2]]).expand(rows, 2), logits, t, h, RowNoise(0, torch.arange(rows)))
    kappa_t, kappa_s = (float(Cosine().kappa(time)) for time in (0.3, 0.7))
    reveal = (kappa_s - kappa_t) / (1 - kappa_t)
    wanted = torch.cat([reveal * LOGITS[0, 0].softmax(-1), torch.tensor([1 - reveal])])
    found = torch.bincount(moved[:, 0], minlength=V + 1) / rows
    assert float((rows * (found - wanted) ** 2 / wanted).sum()) < 30  # chi-square, one in 10⁵
    assert bool((moved[:, 1] == 2).all())


def test_sedd_steps_write_the_same(trained: MDLMSettings) -> None:
    """The score of an x-prediction is r·p: SEDD's analytic step is then the ancestral one, and Euler's too as κ = t."""
    model = tsdfm.load(trained.out, "cpu")
    asked = {"n": 3, "steps": 6, "seed": 1, "prefix": "Mia", "temperature": 0.9, "top_p": 0.9}
    plain = model.sample(**asked)  # type: ignore[arg-type]
    for jump in ("sedd-analytic", "sedd-euler"):
        assert torch.equal(model.sample(**asked, jump=jump).tokens, plain.tokens)  # type: ignore[arg-type]


def test_gaps_need_a_bound(trained: MDLMSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tsdfm.load(trained.out, "cpu")
    assert model.sample(n=1, steps=2, infill="Mia {1-2}.").nfe == 2 * (2 + 8)
    monkeypatch.setattr(type(METHOD), "bound", lambda self: None)
    with pytest.raises(UserError, match="mdlm has no bound to choose a gap's length by"):
        model.sample(n=1, steps=2, infill="Mia {1-2}.")


def test_the_network_is_not_told_the_time(trained: MDLMSettings) -> None:
    velocity = tsdfm.load(trained.out, "cpu").velocity
    x = velocity.source.draw((2, velocity.spec.length), RowNoise(0, torch.arange(2)), torch.device("cpu"))
    early, late = (velocity(x, torch.full((2,), t), torch.zeros(2)) for t in (0.1, 0.9))
    assert torch.equal(early, late)


def test_by_the_command_line(tokens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "mdlm", "--tokens", str(tokens), "--out", str(tmp_path / "run"), "--net.preset", "tiny"]
    assert main([*words, "--loop.steps", "2", "--loop.batch", "4", "--eval-rows", "4", "--eval-times", "1"]) == 0
    assert main([*words, "--source", "uniform"]) == 2
    assert "source takes one of mask" in capsys.readouterr().err


@pytest.mark.parametrize("jump", ["remdm-cap:0.2", "remdm-rescale:0.5", "remdm-conf", "remdm-loop:0.2"])
def test_remasking_samplers_write_with_it(trained: MDLMSettings, jump: str) -> None:
    model = tsdfm.load(trained.out, "cpu")
    made = model.sample(n=4, steps=8, seed=1, prefix="Mia", jump=jump, trajectory=True)
    assert made.nfe == 8
    assert int(made.tokens.max()) < model.velocity.spec.vocab
    assert all(text.startswith("Mia") for text in made.texts)
    assert made.trajectory is not None
    back = sum(a == made.trajectory.mask != b for r in made.trajectory.rows for (s, _), (n, _) in pairwise(r.states())
               for b, a in zip(s, n, strict=True))  # fmt: skip
    assert back > 0
    one = model.sample(n=1, steps=8, seed=1, prefix="Mia", jump=jump, first=2)
    if jump != "remdm-loop:0.2":
        assert torch.equal(one.tokens[0], made.tokens[2])  # text i depends on the seed and i


def test_proposals_are_those_of_the_model(trained: MDLMSettings) -> None:
    """Several jumps from one state, as a compass's negatives are made: with SUBS, what is revealed never moves."""
    from tsdfm.compass.propose import propose

    velocity = tsdfm.load(trained.out, "cpu").velocity
    spec, rows = velocity.spec, 6
    x = torch.randint(0, spec.vocab, (rows, spec.length), generator=torch.Generator().manual_seed(0))
    x[:, 1::2] = spec.vocab
    x[:, : spec.anchor] = 0
    t, h = torch.full((rows,), 0.4, dtype=torch.float64), torch.full((rows,), 0.3, dtype=torch.float64)
    u = RowNoise(0, torch.arange(rows)).uniform((rows, 2, spec.length, 2))
    jump = velocity.jump("euler")
    found = propose(velocity, x, t, h, u, jump)
    logits = velocity(x, t.float(), h.float())
    for n in range(2):
        wanted = jump.move(x, logits, t, h, u[:, n])
        wanted[:, : spec.anchor] = x[:, : spec.anchor]
        assert torch.equal(found[:, n], wanted)
    assert torch.equal(found[:, 0][x != spec.vocab], x[x != spec.vocab])


def test_another_method_does_not_go_on_with_its_run(trained: MDLMSettings, tmp_path: Path) -> None:
    """The settings alone would not tell them apart."""

    class Other(type(METHOD)):  # type: ignore[misc]
        name = "other"

    out = tmp_path / "part"
    shutil.copytree(trained.out, out)
    shutil.rmtree(out / "checkpoints" / "step-00000060")
    with pytest.raises(UserError, match="method was mdlm and is now other"):
        Other().train(dataclasses.replace(trained, out=out, resume=True))
