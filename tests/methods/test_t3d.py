"""T3D: its loss by hand, traces that keep their order, and a training that is stopped, resumed, sampled and played."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import tsdfm
from tsdfm.cli import main
from tsdfm.distil.selfplay import Hiding
from tsdfm.distil.traces import Traces, ranks, remask
from tsdfm.engine.distributed import Processes
from tsdfm.engine.task import Context
from tsdfm.errors import UserError
from tsdfm.flow import RowNoise, solve
from tsdfm.kernels import fused
from tsdfm.kernels.token_logs import logit_chunks, token_logs
from tsdfm.methods import jump_for
from tsdfm.methods.t3d import METHOD, T3DLoop, T3DLoss, T3DOptim, T3DSettings, path_weights
from tsdfm.nn.velocity import Velocity, as_model, load_velocity
from tsdfm.store.manifest import read_manifest
from tsdfm.tokens.loader import HostBatch
from tsdfm.tokens.rows import TokenRows

G, S, V = 3, 8, 6
made = torch.Generator().manual_seed(0)
LOG_Q, LOG_R = (-3 * torch.rand(G, S, 2, generator=made, dtype=torch.float64) for _ in range(2))
RANK = torch.stack([torch.randperm(S, generator=made) for _ in range(G)])
LEARNED = torch.rand(G, S, generator=made) < 0.7


def weights_by_hand(learned: Tensor, rank: Tensor, levels: int) -> Tensor:
    """The mean over levels of the mean over the first tokens, token by token."""
    out = torch.zeros(rank.shape, dtype=torch.float64)
    for g in range(len(rank)):
        order = sorted((i for i in range(rank.shape[1]) if learned[g, i]), key=lambda i: int(rank[g, i]))
        for j in range(1, levels + 1):
            first = order[: math.ceil(j * len(order) / levels)]
            for i in first:
                out[g, i] += 1 / (levels * len(first))
    return out


@pytest.mark.parametrize("levels", [1, 2, 3, 8])
def test_path_weights(levels: int) -> None:
    found = path_weights(LEARNED, RANK, levels)
    torch.testing.assert_close(found, weights_by_hand(LEARNED, RANK, levels), rtol=1e-13, atol=0)
    torch.testing.assert_close(found.sum(-1), torch.ones(G, dtype=torch.float64))
    whole = path_weights(torch.ones(1, S, dtype=torch.bool), torch.arange(S)[None], 2)[0]
    assert whole.tolist() == pytest.approx([(1 / 4 + 1 / 8) / 2] * 4 + [1 / 16] * 4)  # T3D's block of 8 and k = 4


def test_the_loss_and_its_gradient_by_hand() -> None:
    beta, a, path = 0.7, 0.5, 0.2
    log_q = LOG_Q.clone().requires_grad_()
    losses, told = T3DLoss(beta, a, path, 2)(log_q, LOG_R, LEARNED, RANK)
    weights = weights_by_hand(LEARNED, RANK, 2)
    (grad,) = torch.autograd.grad(losses.sum(), log_q)
    for g in range(G):
        n = int(LEARNED[g].sum())
        gaps = [sum(float(LOG_Q[g, i, k] - LOG_R[g, i, k]) for i in range(S) if LEARNED[g, i]) / n for k in (0, 1)]
        real, fake = (1 / (1 + math.exp(-beta * gap)) for gap in gaps)
        term = -sum(float(weights[g, i] * LOG_Q[g, i, 0]) for i in range(S))
        assert losses[g].item() == pytest.approx(-math.log(real) - a * math.log(1 - fake) + path * term, rel=1e-12)
        for i in range(S):
            on = float(LEARNED[g, i]) / n
            wanted = [-beta * (1 - real) * on - path * float(weights[g, i]), a * beta * fake * on]
            assert grad[g, i].tolist() == pytest.approx(wanted, rel=1e-10, abs=1e-14)
    gap = ((LOG_Q - LOG_R)[..., 0] * LEARNED).sum(-1) / LEARNED.sum(-1)
    assert told["margin"].item() == pytest.approx(gap.mean().item())


def test_log_probabilities_of_tokens_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """They and their gradients are those of whole logits."""
    monkeypatch.setitem(fused.ROOM, "cpu", 4 * V)
    head = torch.nn.Linear(5, V).double()
    hidden = torch.randn(10, 5, generator=made, dtype=torch.float64, requires_grad=True)
    tokens = torch.randint(0, V, (10, 2), generator=made)
    tokens[3] = 2  # both the same
    by = torch.randn(10, 2, generator=made, dtype=torch.float64)
    inputs = (hidden, head.weight, head.bias)
    found, whole = token_logs(hidden, head, tokens), head(hidden).log_softmax(-1).gather(-1, tokens)
    torch.testing.assert_close(found, whole, rtol=1e-13, atol=1e-13)
    for mine, theirs in zip(*(torch.autograd.grad(x, inputs, by) for x in (found, whole)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-13)
    parts = [*logit_chunks(hidden, head)]
    assert [len(logits) for _, logits in parts] == [4, 4, 2]
    torch.testing.assert_close(torch.cat([logits for _, logits in parts]), head(hidden).detach())


def test_states_of_a_trace() -> None:
    x_1 = torch.randint(0, V, (G, S), generator=made)
    share, u = torch.tensor([1.0, 0.5, 0.25]), torch.rand(G, S, 3, generator=made, dtype=torch.float64)
    for hide in ("latest", "earliest", "random"):
        found = remask(x_1, RANK, share, u, hide=hide, noised=0.0, mask=V)  # type: ignore[arg-type]
        assert found.masked.sum(-1).tolist() == [8, 4, 2]
        assert torch.equal(found.x_t == V, found.masked)
        assert torch.equal(found.x_t[~found.masked], x_1[~found.masked])
        if hide == "latest":  # what is seen was revealed before all that is not: a state the model was in
            assert torch.equal(found.masked[1], RANK[1] >= 4)
        if hide == "earliest":
            assert torch.equal(found.masked[1], RANK[1] < 4)
    noisy = remask(x_1, RANK, share, u, hide="latest", noised=0.5, mask=V)
    assert torch.equal(noisy.learned | noisy.noised, noisy.masked)
    assert 0 < noisy.noised.sum() < noisy.masked.sum()
    assert bool((noisy.x_t[noisy.noised] < V).all())
    assert bool((noisy.x_t[noisy.learned] == V).all())


def test_shares_are_drawn_by_their_power() -> None:
    hiding = Hiding(block=0, shares=(1.0, 0.75, 0.5, 0.25), power=8.0, hide="latest", noised=0.0)
    u = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
    total = sum(share**8 for share in hiding.shares)
    found = hiding.draw(u)
    for share in hiding.shares:
        assert (found == share).double().mean().item() == pytest.approx(share**8 / total, abs=2e-5)


def settings_for(tokens: Path, start: Path, out: Path, **given: Any) -> T3DSettings:
    values: dict[str, Any] = {
        "traces": 24,
        "trace_steps": 20,
        "beta": 1.0,
        "round": 2,
        "eval_rows": 8,
        "eval_times": 2,
        "loop": T3DLoop(steps=6, batch=8, device="cpu", eval_every=3, save_every=3, log_every=1, keep=5),
        "optim": T3DOptim(lr=2e-3, warmup=2, ema=0.9),
    }
    return T3DSettings(tokens=tokens, init_from=start, out=out, **{**values, **given})


def traces_of(tokens: Path, velocity: Velocity, jump: str = "ancestral", steps: int = 20) -> Traces:
    spec = velocity.spec
    found = Traces(spec, TokenRows(tokens), jump_for(jump, spec), count=12, steps=steps, temperature=1.0, seed=3)
    found.allocate(Processes())
    return found


@pytest.mark.parametrize("jump", ["ancestral", "remdm-rescale:0.3", "llada"])
def test_traces_keep_the_order_of_reveal(tokens: Path, masked_models: dict[str, Path], jump: str) -> None:
    """Against the same generation watched step by step; a token that was taken back counts when it is there to stay."""
    velocity = load_velocity(masked_models["mdlm"])
    traces, spec = traces_of(tokens, velocity, jump), velocity.spec
    text, order = traces.of(torch.arange(12), velocity.net)
    numbers = torch.tensor([int((traces.tokens.long() == row).all(-1).nonzero()[0]) for row in text])
    assert sorted(numbers.tolist()) == [*range(12)]  # an epoch has every trace
    states: list[Tensor] = []
    anchors = torch.from_numpy(traces.rows.take([i % len(traces.rows) for i in range(12)]).astype("int64"))
    done = solve(
        as_model(velocity.net, spec),
        torch.full((12, spec.length), spec.vocab),
        20,
        jump_for(jump, spec),
        RowNoise(3, torch.arange(12), stream=11),
        given=torch.arange(spec.length) < spec.anchor,
        given_tokens=anchors,
        on_step=lambda step: states.append(step.after.clone()),
    )
    assert torch.equal(done.tokens[numbers], text)
    hidden = torch.stack([state == spec.vocab for state in states])[:, numbers, spec.anchor :]
    last = torch.where(hidden, torch.arange(1, 21)[:, None, None], 0).amax(0)  # the last pass after which it is [MASK]
    sorted_by_order = last.gather(-1, order.argsort(-1))
    assert bool((sorted_by_order.diff(dim=-1) >= 0).all())
    assert torch.equal(order.sort(-1).values, torch.arange(spec.length - spec.anchor).expand(12, -1))
    assert len(last.unique()) > 5
    assert torch.equal(ranks(order), order)
    again = traces_of(tokens, velocity, jump)
    assert torch.equal(again.of(torch.arange(4, 8), velocity.net)[0], text[4:8])  # a text depends on its number alone


def test_a_batch_by_hand(tokens: Path, masked_models: dict[str, Path]) -> None:
    """The whole loss, from logits of both networks in float64."""
    start = load_velocity(masked_models["dfm"])
    spec = dataclasses.replace(start.spec, logits="subs")
    size = 13  # 39 free positions are three blocks
    how = {"block": size, "share_power": 1.0, "fake": "greedy"}
    settings = settings_for(tokens, masked_models["dfm"], Path("nowhere"), **how)
    task = METHOD.task(settings, spec, None, Processes())
    task.model = start.net.double()
    task.bind(Context(ema=None, world=Processes()))
    student = spec.network().double()
    student.load_state_dict({name: 1.1 * w for name, w in start.net.state_dict().items()})
    numbers = torch.arange(5)
    batch = HostBatch(torch.zeros(5, spec.length, dtype=torch.int64), numbers, numbers)
    loss, told = task.loss(student, batch, 0)

    x_1, order = task.traces.of(numbers, start.net)
    rank = ranks(order.view(-1, size))
    found = task.states(x_1, rank, RowNoise(0, numbers))
    x_t = torch.cat([x_1[:, :1], found.x_t.view(5, -1)], 1)
    shown = 1 - found.masked.view(5, -1).double().mean(1)
    log_q, log_r = (net(x_t, shown.float()).log_softmax(-1)[:, 1:] for net in (student, start.net))
    both = torch.stack([x_1[:, 1:], log_r.argmax(-1)], -1)
    logs = [x.gather(-1, both).view(-1, size, 2) for x in (log_q, log_r)]
    losses, _ = T3DLoss(1.0, 0.5, 0.2, 2)(*logs, found.learned, rank)
    assert loss.item() == pytest.approx(losses.mean().item(), rel=1e-9)
    assert told.keys() == {"ddo", "path", "margin", "margin_fake"}
    assert found.masked.float().mean() < 1


@pytest.fixture(scope="module")
def trained(tokens: Path, masked_models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> T3DSettings:
    settings = settings_for(tokens, masked_models["mdlm"], tmp_path_factory.mktemp("t3d") / "run")
    METHOD.train(settings)
    return settings


def test_it_says_what_it_is_and_writes(trained: T3DSettings) -> None:
    manifest = read_manifest(trained.out)
    model = manifest["model"]
    assert (manifest["stage"], model["logits"], model["time"], model["jump"]) == ("t3d", "subs", False, "ancestral")
    lines = [json.loads(line) for line in (trained.out / "metrics.jsonl").read_text().splitlines()]
    assert sum("elbo" in line for line in lines) == 2
    first = next(line for line in lines if line["kind"] == "train")
    assert first["margin"] == pytest.approx(0.0, abs=1e-5)  # it begins as its reference
    assert first["ddo"] == pytest.approx(1.5 * math.log(2), rel=1e-4)
    made = tsdfm.load(trained.out, "cpu").sample(n=2, steps=3, seed=1, prefix="Mia")
    assert made.nfe == 3
    assert all(text.startswith("Mia") for text in made.texts)


def test_a_resumed_run_is_the_unbroken_one(trained: T3DSettings, tmp_path: Path) -> None:
    """Its texts and its reference come from the checkpoint."""
    out = tmp_path / "part"
    shutil.copytree(trained.out, out)
    shutil.rmtree(out / "checkpoints" / "step-00000006")
    METHOD.train(dataclasses.replace(trained, out=out, resume=True))
    hashes = [read_manifest(run)["files"] for run in (out, trained.out)]
    assert hashes[0] == hashes[1]
    assert {"teacher.safetensors", "traces.safetensors"} <= {*hashes[0]}
    traces = load_file(out / "checkpoints" / "step-00000006" / "traces.safetensors")
    assert traces["tokens"].shape == (24, 40)
    assert int(traces["made"]) == 1


def test_by_the_command_line(
    tokens: Path, masked_models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, way = tmp_path / "run", tmp_path / "way.json"
    words = ["train", "t3d", "--tokens", str(tokens), "--init-from", str(masked_models["dfm"]), "--loop.steps", "1"]
    words += ["--loop.batch", "4", "--loop.device", "cpu", "--eval-rows", "4", "--eval-times", "1", "--traces", "4"]
    assert main([*words, "--trace-steps", "4", "--out", str(run)]) == 0
    assert main(["sample", str(run), "--steps", "2", "--n", "2", "--save-trajectory", str(way)]) == 0
    assert main(["view", str(way), "--terminal"]) == 0
    capsys.readouterr()
    assert main([*words, "--block", "16", "--out", str(tmp_path / "no")]) == 2
    assert "blocks of 16 tokens do not divide the 39" in capsys.readouterr().err
    assert main([*words, "--trace-jump", "leap", "--out", str(tmp_path / "no")]) == 2
    assert not (tmp_path / "no").exists()


def test_what_is_refused(tokens: Path, uniform_model: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="t3d is for the mask source"):
        METHOD.train(settings_for(tokens, uniform_model, tmp_path / "no"))
    for wrong in ({"shares": ()}, {"shares": (0.0,)}, {"random_tokens": 1.0}, {"beta": 0.0}, {"round": 0}):
        with pytest.raises(UserError):
            settings_for(tokens, uniform_model, tmp_path / "no", **wrong)
