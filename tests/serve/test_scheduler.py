"""The scheduler: a text is the same alone or in a crowd; rows join, leave, wait and take turns between passes."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from serve_parts import DEFAULTS, gate, offline, running, served, texts
from tiny_nets import save_run, tiny_spec, tiny_velocity
from view_parts import save_compass

from tsdfm.compass.model import load_compass
from tsdfm.errors import UserError
from tsdfm.flow import JUMPS
from tsdfm.methods import files, method
from tsdfm.samples.guide import Guide
from tsdfm.samples.model import TextModel
from tsdfm.samples.quick import OneRow, Pass
from tsdfm.serve.jobs import Ask, Busy, Closing, Job, Late, Seen
from tsdfm.serve.row import Crowd, groups
from tsdfm.serve.scheduler import Limits, Scheduler
from tsdfm.serve.served import TOGETHER, Served, fitted, load_served, names_of, ready
from tsdfm.serve.worker import Worker
from tsdfm.tokens.tokenizer import ByteTokenizer

CROWD = [
    Ask(model="tiny", seed=1, n=3),
    Ask(model="tiny", seed=2, steps=1),
    Ask(model="tiny", seed=3, steps=7, prefixes=("Mia has ", "Tom"), n=2),
    Ask(model="tiny", seed=4, steps=5, temperature=0.5, top_p=0.9),
    Ask(model="tiny", seed=-5, steps=3, infills=("Mia has {2} x.",), temperature=0.0),
    Ask(model="tiny", seed=1, steps=6, jump="euler", temperature=1.0),
    Ask(model="tiny", seed=1, steps=6, jump="hazard-cumulative"),
    Ask(model="tiny", seed=6, steps=6, jump="late:2", n=2),
    Ask(model="tiny", seed=1, steps=2, infills=("a {1-3} b",)),
]


@pytest.mark.parametrize(("source", "step_size"), [("uniform", True), ("mask", False)])
def test_a_text_is_bitwise_the_same_alone_or_in_a_crowd(source: str, step_size: bool) -> None:
    """Batches of one row, as on a CPU: the bits of `sample(batch=1)`, in float32."""
    model = served(source=source, step_size=step_size)
    wanted = [offline(model.model, ask) for ask in CROWD]
    assert model.steady()
    with running(model, rows=3) as scheduler:
        assert texts(scheduler, CROWD) == wanted
    with running(model, rows=64) as scheduler:
        assert texts(scheduler, CROWD[::-1]) == wanted[::-1]


@pytest.mark.parametrize(("shapes", "source"), [((4,), "uniform"), ((1, 2, 4), "mask")])
def test_rows_at_different_steps_share_a_pass(shapes: tuple[int, ...], source: str) -> None:
    """In batches of larger shapes the network is called less often, and in float64 nothing else changes."""
    model, alone = (served(source=source, shapes=s, dtype=torch.float64) for s in (shapes, (1,)))
    sizes = list[int]()
    model.model.velocity.net.embedding.register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    wanted = [offline(alone.model, ask) for ask in CROWD]
    with running(model, rows=64) as scheduler:
        assert texts(scheduler, CROWD) == wanted
    assert set(sizes) <= {*shapes, 1}
    assert max(sizes) == 4


def test_in_one_shape_bits_do_not_depend_on_the_crowd() -> None:
    """Batches of four, float32: alone, the row is filled up to four; where this machine is steady, the bits stay."""
    model = served(shapes=(4,), source="uniform")
    assert model.steady()
    with running(model, rows=64) as scheduler:
        crowd = texts(scheduler, CROWD)
        assert [texts(scheduler, [ask])[0] for ask in CROWD] == crowd


@pytest.mark.parametrize(("source", "step_size"), [("uniform", True), ("mask", False)])
def test_batches_of_a_cpu_have_the_bits_of_single_rows(source: str, step_size: bool) -> None:
    """float32: as large as the machine's products allow, which may be one row alone."""
    plain = served(source=source, step_size=step_size, length=32)
    model, sizes = fitted(dataclasses.replace(plain, shapes=()), 1), list[int]()
    assert model.shapes in ((1,), TOGETHER)
    assert model.steady()
    model.model.velocity.net.embedding.register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    with running(model, rows=8) as scheduler:
        assert texts(scheduler, CROWD) == [offline(plain.model, ask) for ask in CROWD]
        assert scheduler.exact["tiny"]
    assert max(sizes) == max(model.shapes)


def test_where_batches_round_by_their_size_rows_go_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, seen = served(shapes=()), list[int]()
    look = Pass.look

    def other(self: Pass, x: torch.Tensor, *given: Any) -> Any:
        seen.append(len(x))
        return lambda places: look(self, x, *given)(places) * (1 + 1e-6 * (len(x) == 3))

    monkeypatch.setattr(Pass, "look", other)
    assert fitted(plain, 1).shapes == (1,)
    assert seen[-1] == 3
    asked = fitted(dataclasses.replace(plain, shapes=(1, 3)), 1)
    assert (asked.shapes, asked.by_row, asked.steady()) == ((1, 3), False, False)
    assert fitted(dataclasses.replace(plain, shapes=(1,)), 1).shapes == (1,)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the shapes of a GPU")
@pytest.mark.parametrize("shapes", [(1,), (4,), (1, 2, 4)])
def test_on_a_gpu(shapes: tuple[int, ...]) -> None:
    """bf16, recorded: where the server says `exact`, a crowd gets the very texts of those who ask alone."""
    velocity = tiny_velocity(tiny_spec(source="uniform", step_size=True), torch.float32)
    velocity.net.to("cuda").requires_grad_(False)
    model = Served(
        "tiny", ready(TextModel(velocity, ByteTokenizer(), "teacher", True), "record"), DEFAULTS, shapes=shapes
    )
    with running(model, rows=64) as scheduler:
        crowd = texts(scheduler, CROWD)
        alone = [texts(scheduler, [ask])[0] for ask in CROWD]
        assert [len(each) for each in crowd] == [len(each) for each in alone]
        if scheduler.exact["tiny"]:
            assert crowd == alone
    assert shapes != (1,) or scheduler.exact["tiny"]


def test_several_shapes_promise_nothing() -> None:
    assert not served(shapes=(1, 4)).steady()


def every_jump() -> list[str]:
    return [*JUMPS, *(name for each in files() for name in method(each).jumps()), "late:2:1"]


@pytest.mark.parametrize("jump", every_jump())
@pytest.mark.parametrize("source", ["uniform", "mask"])
def test_every_jump_is_served_or_refused_in_one_line(jump: str, source: str) -> None:
    """Those that go row by row in shared batches, the others one row at a time: the texts are those of `sample`."""
    model = served(source=source, shapes=(1, 2, 4), dtype=torch.float64)
    asks = [Ask(model="tiny", seed=seed, steps=steps, jump=jump, n=2) for seed, steps in ((0, 3), (1, 5), (2, 4))]
    with running(model) as scheduler:
        assert tried(lambda: texts(scheduler, asks)) == tried(lambda: [offline(model.model, ask) for ask in asks])


def tried(work: Callable[[], Any]) -> Any:
    """What it gives, or how it refuses."""
    try:
        return work()
    except UserError as problem:
        return str(problem)


def test_guided_texts_are_those_of_sample(tmp_path: Path) -> None:
    plain = served(source="uniform")
    compass = load_compass(save_compass(tmp_path / "compass", plain.model.velocity.spec), "cpu")
    model = dataclasses.replace(plain, compass=compass)
    how = {"prefix": "Mia", "temperature": DEFAULTS.temperature, "batch": 1}
    for guide in ("sequence", "token", "sequence-to-token"):
        wanted = [
            model.model.sample(n=2, steps=3, seed=seed, guide=Guide(guide, compass), **how).tokens.tolist()
            for seed in range(2)
        ]
        asks = [Ask(model="tiny", n=2, steps=3, seed=seed, guide=guide, prefixes=("Mia",)) for seed in range(2)]
        with running(model) as scheduler:
            assert texts(scheduler, asks) == wanted
    with running(model) as scheduler, pytest.raises(UserError, match="cannot be guided"):
        texts(scheduler, [Ask(model="tiny", guide="token", jump="hazard-euler")])


class Watch:
    """Keeps what is told of a job, and does something at one of its passes."""

    def __init__(self, at: int = -1, then: Any = None) -> None:
        self.seen, self.at, self.then = list[Seen](), at, then

    def __call__(self, seen: Seen) -> None:
        self.seen.append(seen)
        if seen.passes == self.at:
            self.then()


def test_a_watcher_sees_every_pass_and_the_changes_make_the_text() -> None:
    model, watch = served(source="uniform"), Watch()
    with running(model) as scheduler:
        (text,) = scheduler.submit(Ask(model="tiny", steps=5, prefixes=("ab",)), watch).done.result(600)
    assert [(seen.passes, seen.of, seen.t) for seen in watch.seen] == [(k, 5, k / 5) for k in range(6)]
    state = dict[int, int]()
    for seen in watch.seen:
        state |= dict(seen.changes)
    assert [state[place] for place in range(len(text.tokens))] == text.tokens
    assert len(watch.seen[0].changes) == len(text.tokens) > len(watch.seen[3].changes)
    assert text.passes == 5


class Ahead(Worker):
    """As on a GPU: texts are handed out, and rows begun, while the next pass is made."""

    works_alone = ("cpu",)


def test_what_a_pass_has_made_may_be_told_during_the_next() -> None:
    model, watch = served(source="uniform", shapes=(1, 2, 4), dtype=torch.float64), Watch()
    scheduler = Scheduler([[model]], Limits(rows=5), worker=Ahead)
    try:
        watched = scheduler.submit(Ask(model="tiny", seed=9, steps=5), watch)
        assert texts(scheduler, CROWD) == [offline(model.model, ask) for ask in CROWD]
        assert [text.tokens for text in watched.done.result(600)] == offline(model.model, watched.ask)
        assert [(seen.passes, seen.t) for seen in watch.seen] == [(k, k / 5) for k in range(6)]
        left = [scheduler.submit(Ask(model="tiny", seed=seed, steps=2 + seed)) for seed in range(3)]
        scheduler.close()
        assert [[t.tokens for t in job.done.result(0)] for job in left] == [
            offline(model.model, job.ask) for job in left
        ]
    finally:
        scheduler.close(wait=False)


def test_who_comes_during_a_pass_joins_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is never done until two rows have shared a pass: so the second came in while it was at work."""
    busy, done = threading.Event(), threading.Event()

    class Mark:
        def query(self) -> bool:
            busy.set()
            return done.is_set()

    monkeypatch.setattr("tsdfm.serve.worker.marked", lambda _: Mark())
    model = served(source="uniform", shapes=(1, 2), dtype=torch.float64)
    sizes = list[int]()

    def asked(_: Any, inputs: Any, __: Any) -> None:
        sizes.append(len(inputs[0]))
        if len(inputs[0]) == 2:
            done.set()

    asks = [Ask(model="tiny", seed=seed, steps=4, prefixes=("Mia",) * seed) for seed in range(2)]
    wanted = [offline(model.model, ask) for ask in asks]
    scheduler = Scheduler([[model]], Limits(rows=2), worker=Ahead)
    try:
        while not scheduler.ready:
            time.sleep(0.001)
        model.model.velocity.net.embedding.register_forward_hook(asked)
        first = scheduler.submit(asks[0])
        assert busy.wait(600)
        second = scheduler.submit(asks[1])
        assert [[text.tokens for text in job.done.result(600)] for job in (first, second)] == wanted
    finally:
        done.set()
        scheduler.close(wait=False)
    assert sizes == [1, 2, 2, 2, 1]


def test_what_the_host_does_while_the_pass_before_is_made_is_not_the_schedulers_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A full batch does not wait for the pass before, so a whole turn may lie within that pass. Told by a clock that
    stands still but for two seconds a turn, in which rows are laid together."""
    now, busy = [0.0], threading.Event()

    class Mark:
        def query(self) -> bool:
            return not busy.is_set()

    def gather(*given: Any) -> Crowd:
        now[0] += 1.0
        return laid(*given)

    laid = Served.gather
    monkeypatch.setattr(Served, "gather", gather)
    monkeypatch.setattr("tsdfm.serve.worker.marked", lambda _: Mark())
    monkeypatch.setattr("tsdfm.serve.worker.time", SimpleNamespace(perf_counter=lambda: now[0], sleep=time.sleep))
    model, own = served(source="uniform", shapes=(1,), dtype=torch.float64), dict[bool, int]()
    for at_work in (False, True):
        scheduler = Scheduler([[model]], Limits(rows=1), worker=Ahead)
        try:
            busy.set() if at_work else busy.clear()
            scheduler.submit(Ask(model="tiny", steps=4)).done.result(600)
            while scheduler.tally.turns < 4:
                time.sleep(0.001)
            own[at_work] = round(scheduler.tally.own)
        finally:
            busy.clear()
            scheduler.close(wait=False)
    assert own == {False: 4 * 2, True: 2}, "the first turn has no pass before it"


def test_a_lone_text_is_written_at_once_where_the_model_can() -> None:
    model = served(source="uniform", step_size=True)
    one = OneRow(model.model.velocity)
    model.passes[1, "posterior"] = Pass(model.model.velocity, 1, one=one)
    turns, watch = list[int](), Watch()
    with running(model) as scheduler:
        turn = scheduler.workers[0].one_pass
        scheduler.workers[0].one_pass = lambda *given: (turns.append(1), turn(*given))[1]  # type: ignore[method-assign]
        ask = Ask(model="tiny", seed=4, steps=5, prefixes=("Mia",))
        (text,) = scheduler.submit(ask).done.result(600)
        assert [text.tokens] == offline(model.model, ask)
        (seen,) = scheduler.submit(ask, watch).done.result(600)
        assert (seen.tokens, text.passes, seen.passes, len(watch.seen)) == (text.tokens, 5, 5, 6)
        crowd = Ask(model="tiny", seed=4, n=3)
        assert texts(scheduler, [crowd]) == [offline(model.model, crowd)]
    assert len(turns) == 1 + 5 + DEFAULTS.steps
    assert scheduler.tally.passes == 5 + 5 + DEFAULTS.steps


def test_a_request_joins_at_the_next_pass() -> None:
    model, jobs = served(), list[Job]()
    second = Watch()
    with running(model) as scheduler:
        first = Watch(2, lambda: jobs.append(scheduler.submit(Ask(model="tiny", seed=1, steps=2), second)))
        scheduler.submit(Ask(model="tiny", steps=8), first).done.result(600)
        jobs[0].done.result(600)
        scheduler.close()
        assert scheduler.tally.passes == 8  # the second was written within the passes of the first
    assert [seen.passes for seen in second.seen] == [0, 1, 2]


def test_no_more_rows_than_there_are_places() -> None:
    model, live = served(), list[int]()
    with running(model, rows=2) as scheduler:
        jobs = [
            scheduler.submit(Ask(model="tiny", seed=seed, n=3), lambda _: live.append(scheduler.live))
            for seed in range(3)
        ]
        assert [[text.tokens for text in job.done.result(600)] for job in jobs] == [
            offline(model.model, job.ask) for job in jobs
        ]
        assert max(live) == 2
        assert scheduler.live == 0


def test_models_take_turns() -> None:
    models, turns = [served("a"), served("b", source="uniform")], list[str]()
    with running(*models) as scheduler, gate() as hold:
        first = scheduler.submit(Ask(model="a", steps=1), lambda _: hold.wait(600))
        jobs = [
            scheduler.submit(
                Ask(model=name, steps=3), lambda seen, name=name: turns.append(name) if seen.passes else None
            )
            for name in ("a", "b")
        ]
        hold.set()
        first.done.result(600)
        for job, model in zip(jobs, models, strict=True):
            assert [text.tokens for text in job.done.result(600)] == offline(model.model, job.ask)
    assert sorted(turns) == ["a"] * 3 + ["b"] * 3
    assert turns in (["a", "b"] * 3, ["b", "a"] * 3)


def test_a_cancelled_job_frees_its_rows_at_the_next_pass() -> None:
    model = served()
    with running(model, rows=2) as scheduler, gate() as hold:
        watch = Watch(2, lambda: jobs[0].cancel())
        jobs = [scheduler.submit(Ask(model="tiny", steps=50), lambda seen: (hold.wait(600), watch(seen))[1])]
        other = scheduler.submit(Ask(model="tiny", seed=1, steps=6))
        waits = scheduler.submit(Ask(model="tiny", seed=2, steps=3))
        hold.set()
        assert [text.tokens for text in waits.done.result(600)] == offline(model.model, waits.ask)
        assert [text.tokens for text in other.done.result(600)] == offline(model.model, other.ask)
        with pytest.raises(CancelledError):
            jobs[0].done.result(0)
        assert [seen.passes for seen in watch.seen] == [0, 1, 2]
        assert scheduler.live == 0


def test_a_job_that_is_late_ends_and_makes_room() -> None:
    now, model = [0.0], served()
    with running(model, clock=lambda: now[0], rows=1, deadline=5.0) as scheduler:
        late = scheduler.submit(Ask(model="tiny", steps=50), Watch(3, lambda: now.__setitem__(0, 6.0)))
        with pytest.raises(Late, match="within 5 s"):
            late.done.result(600)
        then = scheduler.submit(Ask(model="tiny"))
        assert [text.tokens for text in then.done.result(600)] == offline(model.model, then.ask)


def test_a_full_queue_says_when_to_come_back() -> None:
    model, begun = served(), threading.Event()
    with running(model, rows=1, queue=3) as scheduler, gate() as hold:
        first = scheduler.submit(Ask(model="tiny"), lambda _: (begun.set(), hold.wait(600)))
        assert begun.wait(600)
        waits = scheduler.submit(Ask(model="tiny", n=2))
        with pytest.raises(Busy) as caught:
            scheduler.submit(Ask(model="tiny", n=2))
        assert caught.value.seconds >= 1
        last = scheduler.submit(Ask(model="tiny", seed=3))
        with pytest.raises(UserError, match="4 rows, at most 3"):
            scheduler.submit(Ask(model="tiny", n=2, prefixes=("a", "b")))
        hold.set()
        for job in (first, waits, last):
            assert [text.tokens for text in job.done.result(600)] == offline(model.model, job.ask)


def test_a_mistake_ends_its_own_job_alone() -> None:
    """remdm-loop refuses two steps when it is asked for one: the neighbour does not notice."""
    model = served(shapes=(1, 2, 4))
    with running(model) as scheduler:
        bad = scheduler.submit(Ask(model="tiny", steps=2, jump="remdm-loop"))
        good = scheduler.submit(Ask(model="tiny", steps=4))
        with pytest.raises(UserError, match="three equal steps"):
            bad.done.result(600)
        assert len(good.done.result(600)) == 1


def test_logits_that_are_not_numbers_are_noticed() -> None:
    model = served()
    model.model.velocity.net.head.bias.data[3] = torch.nan
    with running(model) as scheduler, pytest.raises(RuntimeError, match="not numbers"):
        scheduler.submit(Ask(model="tiny")).done.result(600)


def test_closing_writes_what_was_begun() -> None:
    model = served()
    with running(model, rows=2) as scheduler:
        jobs = [scheduler.submit(Ask(model="tiny", seed=seed, steps=3)) for seed in range(5)]
        scheduler.close()
        assert all(job.done.done() for job in jobs)
        assert [[text.tokens for text in job.done.result()] for job in jobs] == [
            offline(model.model, job.ask) for job in jobs
        ]
        with pytest.raises(Closing):
            scheduler.submit(Ask(model="tiny"))


def test_two_workers_share_the_queue() -> None:
    model, names = served(), set[str]()
    meet = threading.Barrier(2)
    with running(model, devices=2, rows=1) as scheduler:

        def told(seen: Seen) -> None:
            names.add(str(threading.get_ident()))
            if seen.passes == 1:
                meet.wait(600)  # both must be writing

        jobs = [scheduler.submit(Ask(model="tiny", seed=seed), told) for seed in range(2)]
        assert [[text.tokens for text in job.done.result(600)] for job in jobs] == [
            offline(model.model, job.ask) for job in jobs
        ]
    assert len(names) == 2


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        ({"model": "tinny"}, "no model is called 'tinny'"),
        ({"steps": 0}, "at least 1"),
        ({"n": 0}, "n must be at least 1"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 0.0}, "top-p"),
        ({"jump": "eular"}, "unknown jump 'eular'"),
        ({"guide": "token"}, "without a compass"),
        ({"prefixes": ("x" * 99,)}, "shorten it"),
        ({"infills": ("no gap",)}, "has no gap"),
        ({"prefixes": ("x",), "infills": ("{1}",)}, "not both"),
        ({"seed": 2**63}, "64 bits"),
    ],
)
def test_what_cannot_be_asked(ask: dict[str, Any], said: str) -> None:
    with running(served()) as scheduler, pytest.raises(UserError, match=said):
        scheduler.submit(Ask(**{"model": "tiny", **ask}))


def test_a_choice_of_lengths_cannot_be_watched() -> None:
    with running(served()) as scheduler, pytest.raises(UserError, match="give one length"):
        scheduler.submit(Ask(model="tiny", infills=("a {1-2} b",)), lambda _: None)


def test_names_and_shapes_of_models(tmp_path: Path) -> None:
    save_run(tmp_path / "tiny", tiny_spec())
    assert names_of([tmp_path / "tiny", Path("tsdfm-stories/teacher")]) == ["tiny", "tsdfm-stories/teacher"]
    assert load_served(tmp_path / "tiny", "cpu", name="a").shapes in ((1,), TOGETHER)
    assert load_served(tmp_path / "tiny", "cpu", name="a", shapes=(8, 2, 8)).shapes == (2, 8)
    one, other = load_served(tmp_path / "tiny", "cpu", name="a"), load_served(tmp_path / "tiny", "cpu", name="b")
    assert one.fingerprint == other.fingerprint
    assert one.fingerprint != load_served(tmp_path / "tiny", "cpu", name="a", shapes=(4,)).fingerprint


def test_groups_are_filled_up_to_the_smallest_shape() -> None:
    rows: list[Any] = [type("R", (), {"alone": False, "alike": "auto", "n": n})() for n in range(11)]
    made = [([row.n for row in some], shape) for some, shape in groups(rows, (1, 2, 8))]
    assert made == [(list(range(8)), 8), ([8, 9, 10], 8)]
    assert [shape for _, shape in groups(rows[:2], (1, 2, 8))] == [2]
    assert [shape for _, shape in groups(rows[:3], (1,))] == [1, 1, 1]
