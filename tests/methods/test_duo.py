"""Duo: its loss by hand, its curriculum, its samplers on real models, trained, resumed, sampled and played."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tsdfm
from tsdfm import kernels
from tsdfm.cli import main
from tsdfm.engine.settings import LoopSettings, OptimSettings
from tsdfm.flow import Cosine, Polynomial, RowNoise, Schedule, Uniform, solve
from tsdfm.flow.logits import meaning_of
from tsdfm.kernels.fused import fused_loss
from tsdfm.methods import jump_for
from tsdfm.methods.duo import METHOD, CurriculumSettings, DuoLoss, DuoSettings
from tsdfm.nn.settings import NetSettings
from tsdfm.store.checkpoint import load_weights
from tsdfm.store.manifest import read_manifest
from tsdfm.teacher.task import TeacherTask
from tsdfm.tokens.loader import Batch

V = 5
made = torch.Generator().manual_seed(0)
LOGITS = 2 * torch.randn(4, 9, V, generator=made, dtype=torch.float64)
X_1 = torch.randint(0, V, (4, 9), generator=made)
X_T = torch.where(torch.rand(X_1.shape, generator=made) < 0.5, X_1, torch.randint(0, V, X_1.shape, generator=made))
TIMES = torch.tensor([0.05, 0.3, 0.75, 0.99], dtype=torch.float64)


@pytest.mark.parametrize("schedule", [Polynomial(1.0), Polynomial(2.0), Cosine()], ids=str)
def test_the_loss_and_its_gradient_by_hand(schedule: Schedule) -> None:
    """As it is written in the paper, position by position; and the derivative by a logit as a difference."""
    loss = DuoLoss(schedule, Uniform(V))

    def by_hand(logits: Tensor) -> float:
        total = 0.0
        for b, i in ((b, i) for b in range(4) for i in range(9)):
            kappa, slope = float(schedule.kappa(TIMES[b])), float(schedule.derivative(TIMES[b]))
            z, x = int(X_T[b, i]), int(X_1[b, i])
            pi = logits[b, i].softmax(-1).tolist()
            q = [kappa * (y == x) + (1 - kappa) / V for y in range(V)]
            q_hat = [kappa * pi[y] + (1 - kappa) / V for y in range(V)]
            for y in (y for y in range(V) if y != z):
                r, r_hat = q[y] / q[z], q_hat[y] / q_hat[z]
                total += slope / (kappa * V) * (r_hat - r + r * math.log(r / r_hat))
        return total / 36

    leaf = LOGITS.clone().requires_grad_()
    found = loss.plain(leaf, X_1, X_T, TIMES)
    assert found.item() == pytest.approx(by_hand(LOGITS), rel=1e-10)
    found.backward()
    assert leaf.grad is not None
    for place in ((0, 0, 1), (3, 8, 4), (2, 4, int(X_1[2, 4])), (1, 3, int(X_T[1, 3]))):
        change = torch.zeros_like(LOGITS)
        change[place] = 1e-5
        slope = (by_hand(LOGITS + change) - by_hand(LOGITS - change)) / 2e-5
        assert leaf.grad[place].item() == pytest.approx(slope, rel=1e-5, abs=1e-9)


def test_fused_is_plain() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"  # there the kernels run for real, here by the interpreter
    head = torch.nn.Linear(6, V).to(device)
    hidden = torch.randn(4, 9, 6, generator=torch.Generator().manual_seed(1)).to(device)
    x_1, x_t, t = (x.to(device) for x in (X_1, X_T, TIMES))
    for posterior in (False, True):
        loss = DuoLoss(Cosine(), Uniform(V), posterior)
        whole = loss.plain(head(hidden), x_1, x_t, t)
        objective, weight = loss.fused(x_1, x_t, t)
        scale = (weight / X_1.numel()).expand(-1, 9).flatten()
        for forced in (False, True):
            with kernels.forced() if forced else kernels.without():
                found = fused_loss(hidden.flatten(0, 1), head, objective, scale)
            assert found.item() == pytest.approx(whole.item(), rel=1e-5)


def test_a_network_may_predict_the_posterior(tokens: Path, tmp_path: Path) -> None:
    """The same loss of the same law, and a model of plain logits, measured by the same bound."""
    mean = meaning_of("others", Uniform(V), Cosine())
    assert mean is not None
    posterior = mean(LOGITS, X_T, TIMES[:, None])
    found = [
        DuoLoss(Cosine(), Uniform(V), own).plain(logits, X_1, X_T, TIMES).item()
        for own, logits in ((False, LOGITS), (True, posterior))
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-12)
    loop = LoopSettings(steps=4, batch=8, device="cpu")
    settings = settings_for(tokens, tmp_path / "run", predicts="posterior", loop=loop)
    manifest = read_manifest(METHOD.train(settings))
    assert (manifest["model"]["logits"], manifest["bound"]) == ("plain", "Duo NELBO")
    assert tsdfm.load(tmp_path / "run", "cpu").sample(n=1, steps=2).nfe == 2


def test_ends_of_time_are_finite() -> None:
    ends = torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    for schedule in (Polynomial(0.5), Polynomial(1.0), Cosine()):
        assert math.isfinite(DuoLoss(schedule, Uniform(V)).plain(LOGITS, X_1, X_T, ends).item())


def settings_for(tokens: Path, out: Path, **given: Any) -> DuoSettings:
    made: dict[str, Any] = {
        "eval_rows": 16,
        "eval_times": 4,
        "net": NetSettings(width=32, depth=1, heads=2, cond=16, dropout=0.0),
        "loop": LoopSettings(steps=40, batch=8, device="cpu", eval_every=20, save_every=10, log_every=10, keep=9),
        "optim": OptimSettings(lr=5e-3, warmup=5, ema=0.9),
        "curriculum": CurriculumSettings(tau=0.1, tau_end=0.01, top=6),
    }
    return DuoSettings(tokens=tokens, out=out, **{**made, **given})


@pytest.fixture(scope="module")
def trained(tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> DuoSettings:
    settings = settings_for(tokens, tmp_path_factory.mktemp("duo") / "run")
    METHOD.train(settings)
    return settings


def test_it_learns_and_says_what_it_is(trained: DuoSettings) -> None:
    lines = [json.loads(line) for line in (trained.out / "metrics.jsonl").read_text().splitlines()]
    bounds = [line["elbo"] for line in lines if "elbo" in line]
    assert bounds[-1] < bounds[0] < math.log(400)
    manifest = read_manifest(trained.out)
    assert (manifest["stage"], manifest["bound"]) == ("duo", "Duo NELBO")
    model = manifest["model"]
    assert (model["method"], model["logits"], model["clock"]) == ("duo", "others", "sigma")
    assert (model["jump"], model["step_size"]) == ("duo-ancestral", False)


@pytest.mark.parametrize("step", [10, 30])
def test_a_resumed_run_is_the_unbroken_one(trained: DuoSettings, tmp_path: Path, step: int) -> None:
    """Stopped inside the curriculum, and after it."""
    out = tmp_path / "part"
    shutil.copytree(trained.out, out)
    for later in range(step + 10, 41, 10):
        shutil.rmtree(out / "checkpoints" / f"step-000000{later}")
    METHOD.train(dataclasses.replace(trained, out=out, resume=True))
    for which in ("model", "ema"):
        mine, theirs = load_weights(out, which), load_weights(trained.out, which)
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def task_of(trained: DuoSettings, **curriculum: Any) -> TeacherTask:
    spec = tsdfm.load(trained.out, "cpu").velocity.spec
    settings = dataclasses.replace(trained, curriculum=CurriculumSettings(**curriculum))
    task = METHOD.task(settings, spec, None)
    task.model.load_state_dict(load_weights(trained.out, "model"))
    return task


def test_the_curriculum_ends_in_the_plain_loss(trained: DuoSettings) -> None:
    """Its steps, its temperature, and that cold noise is shown as the state itself."""
    batch = Batch(torch.randint(0, 300, (4, 40), generator=torch.Generator().manual_seed(2)), torch.arange(4))
    task = task_of(trained, steps=30, tau=0.1, tau_end=0.001, top=6)
    about = task.objective.curriculum  # type: ignore[attr-defined]
    assert [about.tau(step) for step in (0, 29)] == pytest.approx([0.1, 0.001])
    plain = task_of(trained, steps=0).loss(task.model, batch, 0)[0]
    assert torch.equal(task.loss(task.model, batch, 30)[0], plain)
    assert not torch.equal(task.loss(task.model, batch, 29)[0], plain)
    seen: list[tuple[Tensor, ...]] = []

    class Spy(torch.nn.Module):
        def forward(self, *shown: Any, **how: Any) -> Any:
            seen.append(shown)
            return task.model(*shown, **how)

    task_of(trained, steps=1, tau=1e-7).loss(Spy(), batch, 0)
    shown, sigma, _, weights = seen[0]
    anchor = task.spec.anchor
    assert torch.equal(shown[:, :anchor, 0], batch.tokens[:, :anchor])
    assert bool((weights[:, :anchor, 0] == 1).all())
    assert weights.amax(-1).min() > 0.99
    state = shown.gather(-1, weights.argmax(-1, keepdim=True))[..., 0]
    cold = task.model(shown, sigma, None, weights)
    torch.testing.assert_close(cold, task.model(state, sigma), rtol=1e-3, atol=1e-3)
    kappa = (torch.exp(-sigma.double()) - 1e-3) / (1 - 1e-3)  # what σ tells of the time
    assert bool(((kappa > 0.04) & (kappa < 0.96)).all())


def test_kernels_give_the_curriculum_the_same_loss(trained: DuoSettings) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokens = torch.randint(0, 300, (2, 8), generator=torch.Generator().manual_seed(2))
    batch = Batch(tokens.to(device), torch.arange(2, device=device))
    for step in (0, 1):
        found = []
        for forced in (False, True):
            task = task_of(trained, steps=1, tau=0.05)
            task.model.to(device)
            with kernels.forced("rows") if forced else kernels.without():
                loss = task.loss(task.model, batch, step)[0]
                loss.backward()
            found.append((loss.item(), task.model.embedding.weight.grad))  # type: ignore[union-attr]
        assert found[0][0] == pytest.approx(found[1][0], rel=1e-4)
        torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-2, atol=1e-5)


@pytest.mark.parametrize(
    ("jump", "passes"),
    [("auto", 6), ("duo-greedy", 7), ("duo-psi:0.9", 6), ("remdm-cap:0.1", 6), ("remdm-loop:0.05", 6), ("euler", 6),
     ("cumulative", 6), ("hazard-euler", 6)],
)  # fmt: skip
def test_it_writes(trained: DuoSettings, jump: str, passes: int) -> None:
    model = tsdfm.load(trained.out, "cpu")
    made = model.sample(n=3, steps=6, seed=1, prefix="Mia", jump=jump)
    assert made.nfe == passes
    assert all(text.startswith("Mia") for text in made.texts)
    one = model.sample(n=1, steps=6, seed=1, prefix="Mia", jump=jump, first=2)
    assert torch.equal(one.tokens[0], made.tokens[2])  # text i depends on the seed and i
    whole = model.sample(n=3, steps=6, seed=1, prefix="Mia", jump=jump, trajectory=True)
    assert torch.equal(whole.tokens, made.tokens)  # by all logits as by few
    assert whole.trajectory is not None


def test_temperature_and_top_p_shape_what_is_predicted(trained: DuoSettings) -> None:
    """They act on π before Bayes looks at the token that is there: a position may leave it whatever they are."""
    model, steps = tsdfm.load(trained.out, "cpu"), 6
    velocity, noise = model.velocity, RowNoise(1, torch.arange(4))
    jump = jump_for("auto", velocity.spec)
    shaped: list[Tensor] = []

    def cold(x: Tensor, t: Tensor, h: Tensor) -> Tensor:
        logits = velocity.net(x, velocity.spec.told(t, h)[0])
        shaped.append(logits)
        best = logits.argmax(-1, keepdim=True)
        return torch.full_like(logits, -math.inf).scatter(-1, best, 0.0)

    x_0 = velocity.source.draw((4, velocity.spec.length), noise, torch.device("cpu"))
    held = torch.arange(velocity.spec.length) < velocity.spec.anchor
    first = torch.full((4, velocity.spec.length), model.tokenizer.end_of_text)
    by_hand = solve(cold, x_0, steps, jump, noise, given=held, given_tokens=first)
    for how in ({"temperature": 0.0}, {"top_p": 1e-9}):
        assert torch.equal(model.sample(n=4, steps=steps, seed=1, **how).tokens, by_hand.tokens)
    last = shaped[-1].argmax(-1)[:, velocity.spec.anchor :]
    assert bool((by_hand.tokens[:, velocity.spec.anchor :] == last).double().mean() > 0.5)


def test_a_gap_of_several_lengths_is_chosen_by_its_own_bound(trained: DuoSettings) -> None:
    made = tsdfm.load(trained.out, "cpu").sample(n=2, steps=3, infill="Mia has {1-2} balls.")
    assert len(made.texts) == 2
    assert made.nfe > 3


def test_by_the_command_line(tokens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, way = tmp_path / "run", tmp_path / "way.json"
    words = ["train", "duo", "--tokens", str(tokens), "--out", str(run), "--net.preset", "tiny", "--eval-rows", "4"]
    words += ["--loop.batch", "4", "--eval-times", "1", "--loop.device", "cpu", "--loop.steps", "2"]
    assert main([*words, "--curriculum.gamma-min", "-3", "--curriculum.gamma-max", "-1"]) == 0
    assert "tsdfm train duo-dcd" in capsys.readouterr().err
    asked = ["--steps", "2", "--n", "1", "--jump", "duo-greedy", "--save-trajectory", str(way)]
    assert main(["sample", str(run), *asked]) == 0
    assert main(["view", str(way), "--terminal"]) == 0
    capsys.readouterr()
    for wrong, said in (
        (["--source", "mask"], "source takes one of uniform"),
        (["--curriculum.tau", "0"], "must be above 0"),
        (["--curriculum.gamma-min", "0", "--curriculum.gamma-max", "-1"], "must lie below -1"),
    ):
        assert main([*words, *wrong, "--out", str(tmp_path / "no")]) == 2
        assert said in capsys.readouterr().err
        assert not (tmp_path / "no").exists()
    for jump, said in (("duo-psi:2", "from 0 to 1"), ("duo-greedy:1", "no such dial"), ("remdm-conf", "mask source")):
        assert main(["sample", str(run), "--jump", jump]) == 2
        assert said in capsys.readouterr().err
