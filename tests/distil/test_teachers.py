"""Whose answers are learned: the average, a frozen model, one that is renewed in rounds and survives a resume."""

from __future__ import annotations

import dataclasses
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file
from student_parts import spec_of, stirred

from training import student_settings, student_task
from tsdfm.distil.run import spec_for, train
from tsdfm.distil.settings import StudentLoop, StudentOptim
from tsdfm.distil.teachers import Average, Frozen, Rounds
from tsdfm.engine.distributed import Processes
from tsdfm.engine.task import Context
from tsdfm.errors import UserError
from tsdfm.flow import RowNoise, generalised_kl
from tsdfm.methods.fs_dfm import FSDFM, FSDFMSettings
from tsdfm.nn.velocity import Velocity, as_model
from tsdfm.store.checkpoint import load_weights

SPEC = spec_of()


class InRounds(FSDFM):
    """FS-DFM from a teacher that is renewed every three steps."""

    name: ClassVar[str] = "in-rounds"

    def teacher(self, settings: Any, spec: Any, world: Any) -> Rounds:
        return Rounds(3)


def same(a: Any, b: Any) -> bool:
    return all(torch.equal(x, b[name]) for name, x in a.items())


def velocity_of(spec: Any) -> Velocity:
    return Velocity(spec, stirred(spec, 3), spec.flow_source(), spec.flow_schedule())


def test_average_and_frozen() -> None:
    average, frozen, net = Average(), Frozen(velocity_of(SPEC)), stirred(SPEC, 4)
    average.bind(Context(ema=net, world=Processes()), stirred(SPEC))
    assert average.at(0) is average.at(10) is net
    assert frozen.at(0) is frozen.at(10) is frozen.net
    assert average.parts() == frozen.parts() == {}
    with pytest.raises(UserError, match="averaged"):
        average.bind(Context(ema=None, world=None), stirred(SPEC))  # type: ignore[arg-type]


def test_a_frozen_teacher_is_told_what_it_knows() -> None:
    """A network without step-size conditioning is called with h all the same; one of other logits is refused."""
    plain = replace(SPEC, step_size=False)
    velocity = velocity_of(plain)
    x, t, h = torch.zeros(2, plain.length, dtype=torch.int64), torch.full((2,), 0.3), torch.full((2,), 0.5)
    assert torch.equal(Frozen(velocity).at(0)(x, t, h), velocity.net(x, t))
    assert torch.equal(Frozen(velocity).at(0).hidden(x, t, h), velocity.net.hidden(x, t))
    subs = velocity_of(replace(plain, source="mask", logits="subs"))
    with pytest.raises(UserError, match="logits are subs"):
        Frozen(subs)
    assert torch.equal(Frozen(subs, "subs").at(0)(x, t, h), subs.net(x, t))
    assert torch.equal(Frozen(velocity, "subs").at(0)(x, t, h), velocity.net(x, t))  # at [MASK] both are logits of x_1


class Keeps(FSDFM):
    """FS-DFM that leaves its network as it is told and as it answers."""

    name: ClassVar[str] = "keeps"
    keeps: ClassVar[tuple[str, ...]] = ("time", "step_size", "logits")
    sources: ClassVar[tuple[str, ...]] = ("mask",)

    def rounds(self, settings: Any) -> int:
        return 2


def some_settings(**given: Any) -> FSDFMSettings:
    return student_settings(tokens=Path("a"), init_from=Path("b"), out=Path("c"), **given)  # type: ignore[no-any-return]


def test_a_distiller_may_keep_what_its_start_is_told_and_answers() -> None:
    settings = some_settings()
    mdlm = replace(SPEC, source="mask", step_size=False, time=False, logits="subs", method="mdlm", jump="ancestral")
    kept = spec_for(settings, mdlm, Keeps())
    assert (kept.time, kept.step_size, kept.logits, kept.jump) == (False, False, "subs", "cumulative")
    assert (kept.method, kept.rounds, spec_for(settings, kept, Keeps()).rounds) == ("keeps", 2, 4)
    assert spec_for(settings, replace(mdlm, time=True), Keeps()).time
    assert kept.identity() == mdlm.identity()
    student = spec_for(settings, mdlm, FSDFM())
    assert (student.time, student.step_size, student.logits, student.jump) == (False, True, "subs", "cumulative")
    with pytest.raises(UserError, match="keeps is for the mask source, and b is of uniform"):
        spec_for(settings, SPEC, Keeps())


def test_what_means_nothing_is_not_learned() -> None:
    """With subs, the smallest step's loss is MDLM's: the generalised KL at [MASK], and nothing elsewhere."""
    spec = spec_of("mask", step_size=False, time=False, logits="subs")
    settings = some_settings(share=0.0)
    task = student_task(settings, spec)
    task.model = stirred(spec, 6)
    numbers = torch.arange(5)
    x_1 = (RowNoise(1, numbers).uniform((5, spec.length)) * spec.vocab).long()
    found = task.states(x_1, numbers, numbers, torch.zeros(5, dtype=torch.bool))
    _, small = task.losses(task.model, found, None)
    logits = as_model(task.model, spec)(found.x_t, found.t.float(), found.h.float())[:, spec.anchor :]
    x_1, x_t = (x[:, spec.anchor :] for x in (found.x_1, found.x_t))
    whole = generalised_kl(logits, x_1, x_t, found.t, spec.flow_schedule(), spec.flow_source())
    assert small.item() == pytest.approx(whole.item(), rel=1e-12)
    assert (x_t != spec.vocab).any()


def test_rounds_copy_the_student_and_remember_when() -> None:
    student, rounds = stirred(SPEC, 5), Rounds(4)
    rounds.bind(Context(ema=None, world=Processes()), student)
    first = {name: value.clone() for name, value in student.state_dict().items()}
    with torch.no_grad():
        student.head.weight.add_(1.0)
    for step in range(4):
        assert same(first, rounds.at(step).state_dict())
    assert same(student.state_dict(), rounds.at(4).state_dict())
    assert not any(p.requires_grad for p in rounds.net.parameters())
    assert rounds.at(5) is rounds.called
    assert int(rounds.parts()["teacher"]["round"]) == 1
    with pytest.raises(UserError, match="at least 1"):
        Rounds(0)


def test_a_resumed_run_asks_the_same_teacher(home: Path, tmp_path: Path) -> None:
    """Stopped in the middle of a round, whose teacher is neither the student of then nor the first one."""
    settings: FSDFMSettings = student_settings(
        tokens=home / "tokens",
        init_from=home / "teacher-uniform",
        out=tmp_path / "whole",
        levels="uniform",
        share=0.5,
        eval_rows=4,
        eval_times=1,
        loop=StudentLoop(steps=7, batch=4, device="cpu", eval_every=0, save_every=5, keep=5),
        optim=StudentOptim(lr=2e-3, warmup=1, ema=0.9),
    )
    train(settings, InRounds())
    part = tmp_path / "part"
    shutil.copytree(settings.out, part)
    shutil.rmtree(part / "checkpoints" / "step-00000007")
    train(dataclasses.replace(settings, out=part, resume=True), InRounds())
    for which in ("model", "ema"):
        assert same(load_weights(settings.out, which), load_weights(part, which)), which
    mine, theirs = (load_file(out / "checkpoints/step-00000007/teacher.safetensors") for out in (part, settings.out))
    assert same(mine, theirs)
    assert int(mine["round"]) == 2
    assert not same(load_weights(part, "model"), mine)
