"""The objective of a batch against whole logits, in float64; what it does not depend on."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from student_parts import PairEnergy, flow_of, spec_of, stirred

from training import student_settings, student_task, trainer
from tsdfm.distil.midpoint import policy_from
from tsdfm.distil.settings import NavigateSettings, StudentLoop, StudentOptim, StudentSettings
from tsdfm.distil.task import StudentTask
from tsdfm.distil.times import is_large
from tsdfm.engine.distributed import Processes
from tsdfm.engine.task import Context
from tsdfm.errors import UserError
from tsdfm.flow import RowNoise, generalised_kl
from tsdfm.nn.velocity import Velocity
from tsdfm.tokens.loader import Batch, HostBatch

V, L, B, ANCHOR = 11, 8, 12, 2
COMPASS = PairEnergy(V + 1)
SETTINGS: dict[str, Any] = {
    "tokens": Path("tokens"),
    "init_from": Path("teacher"),
    "out": Path("out"),
    "compass": Path("compass"),
    "levels": "uniform",
    "share": 0.5,
    "probe_every": 2,
    "navigate": NavigateSettings(entropy="vocab"),
    "loop": StudentLoop(batch=B, steps=10, seed=4),
}


def task_of(source: str = "uniform", **given: Any) -> StudentTask:
    spec = spec_of(source, V, L, ANCHOR)
    plain = replace(spec, step_size=False)
    teacher = Velocity(plain, stirred(plain, seed=8).requires_grad_(False), spec.flow_source(), spec.flow_schedule())
    task = student_task(student_settings(**{**SETTINGS, **given}), spec, teacher=teacher, compass=COMPASS)
    task.model = stirred(spec, seed=1)
    task.bind(Context(ema=stirred(spec, seed=2).eval().requires_grad_(False), world=Processes()))
    return task


def batch_of(rows: torch.Tensor | None = None) -> Batch:
    rows = torch.arange(100, 100 + B) if rows is None else rows
    tokens = (RowNoise(0, rows, 50).uniform((len(rows), L)) * V).long()
    tokens[:, :ANCHOR] = 3
    return Batch(tokens, rows)


def kl(log_a: torch.Tensor, log_b: torch.Tensor) -> torch.Tensor:
    return (log_a.exp() * (log_a - log_b)).sum(-1)


def by_hand(task: StudentTask, batch: Batch, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The two parts of the loss with whole logits, row by row."""
    settings, net = task.settings, task.model
    policy = policy_from(
        getattr(settings, "policy", "blind"),
        flow_of(task.spec.source, V),
        settings=getattr(settings, "navigate", None),
        compass=COMPASS,
        held=torch.arange(L) < ANCHOR,
    )
    large = small = torch.zeros((), dtype=torch.float64)
    for i in range(len(batch.rows)):
        one = Batch(batch.tokens[i : i + 1], batch.rows[i : i + 1])
        is_one = is_large(one.rows, task.times.share)
        s = task.states(one.tokens, one.rows, one.rows, is_one)
        logits = net(s.x_t, s.t.float(), s.h.float())[:, ANCHOR:]
        if not bool(is_one):
            assert s.h.item() == 1 / 1024
            if settings.target == "data":
                args = (s.x_1[:, ANCHOR:], s.x_t[:, ANCHOR:], s.t, task.schedule, task.source)
                small = small + generalised_kl(logits, *args)
            else:
                log_p = task.floor.teacher.net(s.x_t, s.t.float())[:, ANCHOR:].log_softmax(-1)  # type: ignore[union-attr]
                small = small + divergence(settings, log_p, logits.log_softmax(-1)).mean()
            continue
        with torch.no_grad():
            x, half, stages = s.x_t, s.h / 2, []
            for n, time in enumerate((0.0, 0.5, 0.5, 1.0)):
                stages.append(task.teacher.at(0)(x, (s.t + time * s.h).float(), half.float()))
                if n < 3:
                    x = policy(x, stages[-1], s.t + time * s.h, half, s.noise)
                assert bool((x[:, :ANCHOR] == 3).all())
            if settings.average == "logits":
                log_p = (sum(w * k for w, k in zip((1, 2, 2, 1), stages, strict=True)) / 6).log_softmax(-1)
            else:
                log_p = (sum(w * k.softmax(-1) for w, k in zip((1, 2, 2, 1), stages, strict=True)) / 6).log()
        large = large + divergence(settings, log_p[:, ANCHOR:], logits.log_softmax(-1)).mean()
    return large / len(batch.rows), small / len(batch.rows)


def divergence(settings: StudentSettings, log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    return kl(log_p, log_q) if settings.divergence == "forward" else kl(log_q, log_p)


@pytest.mark.parametrize("source", ["uniform", "mask"])
@pytest.mark.parametrize(
    "given",
    [
        {"policy": "blind", "divergence": "forward"},
        {"policy": "sequence-to-token", "divergence": "reverse"},
        {"policy": "token", "target": "teacher", "average": "probabilities", "divergence": "forward"},
        {"policy": "sequence", "target": "teacher", "divergence": "reverse"},
        {"share": 0.0},
        {"share": 1.0},
    ],
    ids=str,
)
def test_loss_and_gradients(source: str, given: dict[str, Any]) -> None:
    task, batch = task_of(source, **given), batch_of()
    loss, extras = task.loss(task.model, batch, step=1)
    loss.backward()
    mine = {name: p.grad.clone() for name, p in task.model.named_parameters()}  # type: ignore[union-attr]
    task.model.zero_grad()
    large, small = by_hand(task, batch, step=1)
    (large + small).backward()
    assert loss.item() == pytest.approx((large + small).item(), rel=1e-10)
    for name, p in task.model.named_parameters():
        torch.testing.assert_close(mine[name], p.grad, rtol=1e-8, atol=1e-10)
    if task.times.share:
        assert extras["kl"].item() == pytest.approx(large.item() / task.times.share)
    if task.times.share < 1:
        assert extras["small"].item() == pytest.approx(small.item() / (1 - task.times.share))
    assert all(p.grad is None for p in task.teacher.at(0).parameters())


def test_parts_of_a_batch_average_to_the_whole() -> None:
    """On one device or two, in micro-batches or at once, in any order: the same loss and the same statistics."""
    task, batch = task_of(policy="sequence-to-token"), batch_of()
    whole, told = task.loss(task.model, batch, step=2)
    for size in (1, 3, 6):
        parts = [Batch(batch.tokens[i : i + size], batch.rows[i : i + size]) for i in range(0, B, size)]
        found = [task.loss(task.model, part, step=2) for part in parts]
        assert sum(loss.item() for loss, _ in found) / len(found) == pytest.approx(whole.item(), rel=1e-10)
        for name, value in told.items():
            mean = sum(extras[name].item() for _, extras in found) / len(found)
            assert mean == pytest.approx(value.item(), rel=1e-9, abs=1e-12), name
    order = torch.randperm(B, generator=torch.Generator().manual_seed(0))
    mixed, _ = task.loss(task.model, Batch(batch.tokens[order], batch.rows[order]), step=2)
    assert mixed.item() == pytest.approx(whole.item(), rel=1e-10)
    host, _ = task.loss(task.model, HostBatch(batch.tokens, batch.rows, batch.rows.clone()), step=2)
    assert host.item() == whole.item()


@pytest.mark.parametrize("source", ["uniform", "mask"])
@pytest.mark.parametrize("policy", ["sequence", "token", "sequence-to-token"])
def test_tau_one_is_fs_dfm_bit_for_bit(source: str, policy: str) -> None:
    batch, found = batch_of(), []
    for given in ({"policy": "blind"}, {"policy": policy, "navigate": NavigateSettings(tau=1.0)}):
        task = task_of(source, **given)
        loss, _ = task.loss(task.model, batch, step=0)
        loss.backward()
        found.append([loss, *(p.grad for p in task.model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    shaped = task_of(source, policy=policy)
    assert shaped.loss(shaped.model, batch, step=0)[0].item() != found[0][0].item()


def test_only_rows_with_a_large_step_go_through_the_semi_teacher() -> None:
    task, seen = task_of(share=0.25), []
    task.teacher.at(0).register_forward_pre_hook(lambda _, args: seen.append(tuple(args[0].shape)))
    task.loss(task.model, batch_of(), step=0)
    assert seen == [(3, L)] * 4
    seen.clear()
    none = task_of(share=0.0)
    none.loss(none.model, batch_of(), step=0)
    assert seen == []


def test_statistics_of_a_step() -> None:
    task, batch = task_of(policy="sequence-to-token"), batch_of()
    _, probed = task.loss(task.model, batch, step=0)
    _, extras = task.loss(task.model, batch, step=1)
    assert probed["nav/probed"] > 0
    assert extras["nav/probed"] == 0
    assert {k: v for k, v in extras.items() if "prob" not in k and "energy" not in k} == {
        k: v for k, v in probed.items() if "prob" not in k and "energy" not in k
    }
    large = task.states(batch.tokens, batch.rows, batch.rows, is_large(batch.rows, 0.5))
    t, h = large.t[: large.large], large.h[: large.large]
    share = torch.stack([t >= 0.2, t + h / 2 >= 0.2, t + h / 2 >= 0.2]).double().mean().item()
    read = task.summary({name: float(x) for name, x in probed.items()})
    assert read["nav/navigated"] == pytest.approx(share)
    assert read["nav/scored"] == pytest.approx(6)
    assert read["nav/energy_navigated"] < read["nav/energy_blind"]
    blind = task_of()
    assert set(blind.loss(blind.model, batch, step=0)[1]) == {"kl", "small"}


def test_tau_may_go_over_the_training() -> None:
    task = task_of(policy="sequence", navigate=NavigateSettings(tau=0.8, tau_end=0.2))
    from tsdfm.distil.stats import Stats

    found = [task.rollout.policy(step, Stats(5)).settings.tau for step in (0, 5, 10, 20)]  # type: ignore[attr-defined]
    assert found == pytest.approx([0.8, 0.5, 0.2, 0.2])


def test_states_are_those_of_the_path() -> None:
    task = task_of("mask")
    rows = torch.arange(4000)
    s = task.states(batch_of(rows).tokens, rows, rows, is_large(rows, 0.5))
    assert bool((s.h[: s.large] > 1 / 513).all())
    assert bool((s.h[s.large :] == 1 / 1024).all())
    assert bool((s.x_t[:, :ANCHOR] == 3).all())
    arrived = (s.x_t == s.x_1)[:, ANCHOR:].double().mean(-1)
    late = s.t > 0.75
    assert arrived[late].mean().item() == pytest.approx(s.t[late].mean().item(), abs=0.02)


def test_a_fitted_student_begins_as_its_teacher() -> None:
    """New weights random: another function. Fitted: the teacher's, whatever h is."""
    from tsdfm.distil.start import start_from

    spec = spec_of("uniform", V, L, 0)
    spec = replace(spec, shape=replace(spec.shape, cond=32))
    plain = replace(spec, step_size=False)
    teacher = stirred(plain, size=0.2).float()
    with torch.no_grad():
        for block in (*teacher.blocks, teacher):
            block.adaln.weight.mul_(2.0)  # a teacher that cares about t
    x = torch.randint(0, V, (16, L), generator=torch.Generator().manual_seed(0))
    t, h = torch.linspace(0, 0.99, 16), 2.0 ** -(torch.arange(16) % 11).float()
    with torch.no_grad():
        wanted, gap = teacher(x, t).log_softmax(-1), {}
        for fit in (False, True):
            torch.manual_seed(0)
            student = spec.network()
            start_from(student, teacher.state_dict(), spec, step_size=False, fit=fit, where="here")
            gap[fit] = kl(wanted, student(x, t, h).log_softmax(-1)).mean().item()
    assert gap[True] < 0.02 * gap[False]
    again = spec.network()
    start_from(again, student.state_dict(), spec, step_size=True, fit=True, where="here")
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), student.parameters(), strict=True))
    broken = dict(teacher.state_dict())
    broken.pop("norm.weight")
    with pytest.raises(UserError, match="other parts"):
        start_from(spec.network(), broken, spec, step_size=False, fit=False, where="here")


def test_settings() -> None:
    base = {"tokens": Path("a"), "init_from": Path("b"), "out": Path("c")}
    made = student_settings(**base)
    assert (trainer(made).name, made.optim.lr, made.optim.ema, made.optim.ema_warmup) == ("fs-dfm", 1e-5, 0.9995, False)
    assert (made.optim.warmup, made.optim.weight_decay, made.loop.batch) == (10_000, 0.03, 96)
    assert trainer(student_settings(**base, policy="token", compass=Path("d"))).name == "ts-dfm"
    with pytest.raises(UserError, match="compass"):
        student_settings(**base, policy="sequence-to-token")
    student_settings(**base, policy="sequence-to-token", navigate=NavigateSettings(selector="random"))
    navigated = {"policy": "token", "compass": Path("d")}
    for wrong in ({"share": 1.5}, {"dropout": 1.0}, {"eval_rows": 0}, {**navigated, "probe_every": -1}):
        with pytest.raises(UserError):
            student_settings(**base, **wrong)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="ema must be above 0"):
        StudentOptim(ema=0.0)
