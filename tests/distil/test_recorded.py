"""The target as one recording. A stand-in replays by running what was recorded on the recording's own tensors, so that
whatever a plan forgets to say (a number of the host, a tensor of one step) shows as another result than the plain one.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from benchmarks.agreement import same_targets
from step_parts import MAKERS, SPEC, batch_of, by_formula, student
from student_parts import PairEnergy

from tsdfm import kernels
from tsdfm.distil.beyond.settings import RefreshSettings
from tsdfm.distil.chain import ESTIMATORS, target_of
from tsdfm.distil.midpoint import policy_from
from tsdfm.distil.recorded import RecordedTarget, may_record
from tsdfm.distil.settings import NavigateSettings
from tsdfm.distil.stats import Stats
from tsdfm.engine.distributed import Processes
from tsdfm.engine.graphs import GraphMemory, Recording, Routines
from tsdfm.engine.task import Context
from tsdfm.flow import CumulativeJump, RowNoise

ROWS = 4
CPU = torch.device("cpu")


class ByHand(Routines):
    """Recordings that replay by running the function, on any device; `replays` counts what was not a plain call."""

    replays = 0

    def safe(self, inputs: Any) -> bool:
        return not self.off

    def record(self, inputs: Any) -> Recording:
        static, rooms, fn = self.copies(inputs), self.rooms_of(inputs), self.fn

        def step() -> None:
            self.replays += 1
            for room, value in zip(rooms, fn(*static), strict=True):
                room.copy_(value)

        return Recording(SimpleNamespace(replay=step), [x for x in static if x is not None], rooms, keep=fn)


def by_hand(semi: Any) -> RecordedTarget:
    made = RecordedTarget(semi, GraphMemory())
    made.routines = ByHand(semi, semi, made.pool)
    return made


def given(seed: int) -> tuple[Any, ...]:
    """States, times and step sizes of one step, and the rows' numbers."""
    made = torch.Generator().manual_seed(seed)
    x_t = torch.randint(SPEC.vocab, (ROWS, SPEC.length), generator=made)
    t = torch.randint(0, 512, (ROWS,), generator=made).double() / 1024
    h = 2.0 ** -torch.randint(1, 4, (ROWS,), generator=made).double()
    return x_t, t, h, torch.randint(1 << 30, (ROWS,), generator=made)


@pytest.mark.parametrize("average", ["logits", "probabilities"])
@pytest.mark.parametrize("name", ["blind", "sequence-to-token"])
def test_replayed_targets_are_the_plain_ones(name: str, average: str) -> None:
    semi = by_formula(SPEC.network()).eval().requires_grad_(False)
    held = torch.arange(SPEC.length) < 1
    compass, jump = PairEnergy(SPEC.vocab), CumulativeJump(SPEC.flow_schedule(), SPEC.flow_source())
    mine, found = by_hand(semi), []
    for seed in range(24):
        tau = 0.2 + 0.001 * seed  # τ may move during a training
        x_t, t, h, numbers = given(seed)
        with torch.no_grad():
            for p in semi.parameters():  # as the average does: in place
                p.mul_(1.01)
        results = []
        for make in (mine, lambda *args: target_of(semi, *args)):
            stats = Stats(3)
            settings = NavigateSettings(k=3, tau=tau)
            policy = policy_from(name, jump, settings=settings, compass=compass, held=held, stats=stats)
            rows = ROWS - 1 + seed % 2
            noise = RowNoise(7, numbers[:rows])
            target = make(x_t, t, h, policy, noise, ESTIMATORS["rk4"], average, 1, rows)
            results.append((target, stats, noise.draws))
        (a, ours, drawn), (b, theirs, as_many) = results
        assert len(a.hidden) == len(b.hidden)
        assert all(torch.equal(x, y) for x, y in zip(a.hidden, b.hidden, strict=True))
        assert torch.equal(a.log_p(slice(None)), b.log_p(slice(None)))
        assert drawn == as_many
        assert ours.midpoints == theirs.midpoints
        assert {k: float(v) for k, v in ours.mean(1, CPU).items()} == {
            k: float(v) for k, v in theirs.mean(1, CPU).items()
        }
        found.append(a.hidden[0])
    assert isinstance(mine.routines, ByHand)
    assert mine.routines.replays >= 6  # some plans came more than once
    assert not torch.equal(found[0], found[2])


def test_noise_and_rows_without_room_for_doubt() -> None:
    """Another seed, another draw or another number of rows is another plan."""
    semi = by_formula(SPEC.network()).eval().requires_grad_(False)
    policy = policy_from("blind", CumulativeJump(SPEC.flow_schedule(), SPEC.flow_source()))
    mine = by_hand(semi)
    x_t, t, h, numbers = given(0)
    noises = [RowNoise(1, numbers), RowNoise(2, numbers), RowNoise(1, numbers, 5), RowNoise(1, numbers, 0, 9)]
    for _ in range(2):
        for noise in noises:
            fresh = [RowNoise(noise.seed, numbers, noise.stream, noise.draws) for _ in range(2)]
            a = mine(x_t, t, h, policy, fresh[0], ESTIMATORS["rk4"], "logits", 1, ROWS)
            b = target_of(semi, x_t, t, h, policy, fresh[1], ESTIMATORS["rk4"], "logits", 1, ROWS)
            assert torch.equal(a.hidden[0], b.hidden[0])
    assert len(mine.routines.made) == len(noises)


def test_whole_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training with a recorded target goes as one without."""
    runs = []
    for record in (True, False):
        monkeypatch.setattr("tsdfm.distil.recorded.may_record", lambda p, _, on=record: on and not p.stats.probe)
        learner = MAKERS["ts-dfm"](CPU)
        task: Any = learner.task
        task.rollout.recorded = by_hand(task.teacher.at(0))
        measured = [learner.update(batch_of(step % 3, CPU), step)[0] for step in range(9)]
        assert (task.rollout.recorded.routines.replays > 0) == record
        runs.append([{name: float(value) for name, value in values.items()} for values in measured])
    assert runs[0] == runs[1]


def test_the_benchmarks_compare_both_ways(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("tsdfm.distil.recorded.may_record", lambda *_: True)
    learner = MAKERS["ts-dfm"](CPU)
    task: Any = learner.task
    rows = [batch_of(step % 2, CPU) for step in range(8)]
    same_targets("mine", learner, rows)
    assert capsys.readouterr().out == ""  # nothing is recorded
    task.rollout.recorded = mine = by_hand(task.teacher.at(0))
    same_targets("mine", learner, rows)
    assert "targets of 8 batches, 8 the same bits, all to 0.0e+00; 2 recordings" in capsys.readouterr().out
    assert task.rollout.recorded is mine
    assert mine.routines.replays > 0  # type: ignore[attr-defined]


def test_a_target_is_recorded_where_it_was_asked_for_and_can_be() -> None:
    def bound(pool: GraphMemory | None, **given: Any) -> RecordedTarget | None:
        task: Any = student("sequence-to-token", CPU, **given).task
        task.bind(Context(ema=task.teacher.at(0), world=Processes(device=CPU), graphs=pool))
        return task.rollout.recorded  # type: ignore[no-any-return]

    pool = GraphMemory()
    made = bound(pool, record=True)
    assert made is not None
    assert made.pool is pool
    assert bound(pool) is None
    assert bound(None, record=True) is None  # as without CUDA, or with loop.graphs off
    assert bound(pool, record=True, refresh=RefreshSettings(every=1)) is None  # another compass in every step


def test_what_is_not_recorded() -> None:
    jump, x_t = CumulativeJump(SPEC.flow_schedule(), SPEC.flow_source()), torch.zeros(1, 2, dtype=torch.int64)

    def may(name: str = "sequence-to-token", probe: bool = False, **dials: Any) -> bool:
        settings, stats = NavigateSettings(**dials), Stats(5, probe=probe)
        policy = policy_from(name, jump, settings=settings, compass=PairEnergy(SPEC.vocab), stats=stats)
        return may_record(policy, x_t)

    assert not may()  # no kernels on a CPU: the host looks where a state can move
    with kernels.forced():
        assert may()
        assert may("blind")
        assert not may(agree=0.5)  # the host looks whether energies agree
        assert not may(probe=True)


def test_a_failed_recording_counts_once() -> None:
    class Fails(ByHand):
        def record(self, inputs: Any) -> Recording:
            self.fn(*self.copies(inputs))
            raise RuntimeError("no capture today")

    semi = by_formula(SPEC.network()).eval().requires_grad_(False)
    mine, found = by_hand(semi), []
    mine.routines = Fails(semi, semi, mine.pool)
    x_t, t, h, numbers = given(3)
    jump, settings = CumulativeJump(SPEC.flow_schedule(), SPEC.flow_source()), NavigateSettings(k=3, tau=0.0)
    compass = PairEnergy(SPEC.vocab)
    for turn in range(2):
        stats = Stats(3)
        policy = policy_from("sequence-to-token", jump, settings=settings, compass=compass, stats=stats)
        call = (x_t, t, h, policy, RowNoise(7, numbers), ESTIMATORS["rk4"], "logits", 1, ROWS)
        if turn:
            with pytest.warns(UserWarning, match="no capture today"):
                mine(*call)
        else:
            mine(*call)
        found.append(stats.summary())
    assert found[0] == found[1]
    assert mine.routines.off


class Cheap:
    """An energy of any device."""

    def energy(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x.double()).mean(-1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="records CUDA graphs")
@pytest.mark.parametrize("name", ["blind", "sequence-to-token"])
def test_recordings_on_a_gpu_are_the_same_bits(name: str) -> None:
    device = torch.device("cuda")
    semi = by_formula(SPEC.network()).to(device).eval().requires_grad_(False)
    mine, compass = RecordedTarget(semi, GraphMemory()), Cheap()
    jump = CumulativeJump(SPEC.flow_schedule(), SPEC.flow_source())
    for seed in range(24):
        x_t, t, h, numbers = given(seed)
        found = []
        for make in (mine, lambda *args: target_of(semi, *args)):
            stats = Stats(3)
            policy = policy_from(name, jump, settings=NavigateSettings(k=3, tau=0.2), compass=compass, stats=stats)
            with torch.autocast("cuda", torch.bfloat16):
                noise = RowNoise(7, numbers.to(device))
                target = make(x_t.to(device), t, h, policy, noise, ESTIMATORS["rk4"], "logits", 1, ROWS)
            found.append([target.hidden[0], stats.packed(device)])
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert mine.routines.made
    assert not mine.routines.off
