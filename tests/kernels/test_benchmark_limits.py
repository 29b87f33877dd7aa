"""A time limit, or a part that fails, takes none of the rows that are there or could be."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import compass, growth, harness, kernels, matching, sampling, student, teacher
from benchmarks.harness import Clock, Estimate, Ledger, interleaved

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {"preset": "tiny", "vocab": 30, "length": 8, "compile": False, "device": "cpu"}
PACE: dict[str, Any] = {"warm": 1, "repeats": 2}
PAIR = ["fs-dfm", "ts-dfm τ=0.2 K=2"]
OTHERS = ["ts-dfm τ=0.2 K=3", "ts-dfm τ=0.4 K=2"]


class Counted(Clock):
    """A clock that has run out when `work` has been called so many times."""

    calls = 0
    most = 0

    @property
    def left(self) -> float:
        return 1e6 if self.calls < self.most else -1.0


@pytest.fixture
def run_out(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str, int], None]:
    """Let time run out after the nth call of `module.name`."""

    def after(module: Any, name: str, most: int) -> None:
        plain = getattr(module, name)

        class Mine(Counted):
            pass

        def counted(*args: Any, **more: Any) -> Any:
            try:
                return plain(*args, **more)
            finally:
                Mine.calls += 1

        Mine.most = most
        monkeypatch.setattr(module, name, counted)
        for benchmark in (student, growth, compass, teacher, matching, sampling, kernels):
            monkeypatch.setattr(benchmark, "Clock", Mine)

    return after


def failing(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, when: Callable[..., bool]) -> None:
    plain = getattr(module, name)

    def work(*args: Any, **more: Any) -> Any:
        if when(*args, **more):
            raise RuntimeError("out of memory, say")
        return plain(*args, **more)

    monkeypatch.setattr(module, name, work)


def table(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "results.json").read_text())[name]
    return found


def steps_of(folder: Path) -> list[str]:
    return [row["step"] for row in table(folder, "student")["rows"]]


def star(folder: Path, **more: Any) -> student.StudentBenchmark:
    return student.StudentBenchmark(**SIZES, **PACE, batch=(2,), tau=(0.2, 0.4), k=(2, 3), out=folder, **more)


def test_time_that_runs_out_after_two_leaves_two(tmp_path: Path, run_out: Any) -> None:
    run_out(student, "stepping", 2)
    student.run(star(tmp_path, switch=("record",)))
    assert steps_of(tmp_path) == PAIR
    found = table(tmp_path, "student")
    switched = [f"{name}, record" for name in PAIR]
    assert found["not measured"] == [f"batch 2: {name}" for name in [*OTHERS, *switched]]
    assert found["rows"][1]["to fs-dfm"] == found["rows"][1]["ms"] / found["rows"][0]["ms"]


def test_the_next_run_begins_with_what_is_missing(tmp_path: Path, run_out: Any) -> None:
    run_out(student, "stepping", 3)
    student.run(star(tmp_path))
    assert steps_of(tmp_path) == [*PAIR, OTHERS[0]]
    run_out(student, "stepping", 3)
    student.run(star(tmp_path))
    assert sorted(steps_of(tmp_path)) == sorted([*PAIR, *OTHERS])
    assert "not measured" not in table(tmp_path, "student")


def test_the_first_is_kept_before_the_second_may_take_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the estimate says no, the pair is tried all the same, with the first one's row in the file already."""
    seen: list[list[str]] = []
    plain = student.stepping

    def stepping(*args: Any) -> Any:
        if args[2] is not None:
            seen.append(steps_of(tmp_path))
        return plain(*args)

    monkeypatch.setattr(student, "stepping", stepping)
    monkeypatch.setattr(student.Variants, "estimate", lambda self: 1e9 if self.steps else 0.0)
    student.run(star(tmp_path))
    assert seen == [["fs-dfm"]]
    assert steps_of(tmp_path) == PAIR


def test_the_estimate_is_the_longest_build_and_the_timing_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    made = student.Variants(CPU, Clock(100.0, start=0.0), warm=1, turns=10)

    def slow(build: float, pace: float) -> Any:
        now[0] += build
        return lambda n: now.__setitem__(0, now[0] + pace)

    for name, build, pace in (("a", 20.0, 1.0), ("b", 5.0, 0.5)):
        assert made.fits(name)
        assert made.build(name, partial(slow, build, pace))
    assert made.estimate() == 21.0 + 10 * (1.0 + 0.5 + 1.0)
    assert now[0] == 26.5
    assert made.fits("c")  # 73.5 left
    now[0] += 30.0
    assert not made.fits("d")  # that took 30, so the next one needs 55 of 43.5
    assert made.left == ["d"]


def test_a_step_that_fails_takes_no_other_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        failing(patch, student, "stepping", lambda _, __, plan, *___: plan is not None and plan.k == 3)
        student.run(star(tmp_path))
    assert steps_of(tmp_path) == [*PAIR, OTHERS[1]]
    with monkeypatch.context() as patch:  # a whole batch size
        failing(patch, student, "compare", lambda _, batch, *__: batch == 3)
        student.run(student.StudentBenchmark(**SIZES, **PACE, batch=(3, 4), tau=(0.2,), k=(2,), out=tmp_path))
    assert {row["batch"] for row in table(tmp_path, "student")["rows"]} == {2, 4}


def test_one_that_fails_while_it_is_timed(capsys: pytest.CaptureFixture[str]) -> None:
    def breaks(n: int) -> None:
        if n == 2:
            raise RuntimeError("a step went wrong")

    times = interleaved({"good": lambda n: None, "bad": breaks}, CPU, 4)
    assert {name: len(t) for name, t in times.items()} == {"good": 4}
    assert "FAILED: bad, while timing" in capsys.readouterr().out


def growing(folder: Path) -> growth.GrowthBenchmark:
    sizes: dict[str, Any] = {"preset": "tiny", "vocabs": (30, 40), "lengths": (8,), "ks": (2, 1, 3), "rows": 2}
    return growth.GrowthBenchmark(**sizes, **PACE, device="cpu", out=folder)


def test_growth_keeps_what_it_has(tmp_path: Path, run_out: Any) -> None:
    run_out(growth, "told", 2)
    growth.run(growing(tmp_path))
    found = table(tmp_path, "growth")
    assert [row["step"] for row in found["rows"]] == PAIR
    middle = "K: 2 rows of 8, |V| = 30"
    left = [*(f"{middle}: ts-dfm τ=0.2 K={k}" for k in (1, 3)), "|V|: 2 rows of 8, |V| = 40"]
    assert found["not measured"] == left


def test_growth_without_one_of_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, growth, "told", lambda _, plan, __: hasattr(plan, "navigate") and plan.navigate.k == 3)
    growth.run(growing(tmp_path))
    rows = table(tmp_path, "growth")["rows"]
    assert [(row["|V|"], row["step"]) for row in rows] == [
        *((30, name) for name in (*PAIR, "ts-dfm τ=0.2 K=1")),
        *((40, name) for name in PAIR),
    ]


def sampling_plan(folder: Path) -> sampling.SamplingBenchmark:
    size: dict[str, Any] = {**SIZES, "batch": (2, 1), "steps": (2,), "teacher_steps": 4, "timed": 2, "repeats": 1}
    return sampling.SamplingBenchmark(**size, quick=False, out=folder)


def sampled(folder: Path) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in ("model", "batch", "passes")) for row in table(folder, "sampling")["rows"]]


def test_sampling_builds_nothing_without_time(tmp_path: Path, run_out: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    for name in ("text_model", "writer"):
        plain = getattr(sampling, name)
        monkeypatch.setattr(sampling, name, lambda *a, n=name, w=plain, **m: (built.append(n), w(*a, **m))[1])
    run_out(sampling.Case, "seconds", 3)
    sampling.run(sampling_plan(tmp_path))
    assert built == ["text_model"]
    assert sampled(tmp_path) == [("student", 1, 2), ("student", 2, 2), ("student", 2, 4)]
    left = ["student, 4 passes, batch 1", "teacher", "autoregressive"]
    assert table(tmp_path, "sampling")["not measured"] == left


def test_sampling_keeps_its_rows_when_the_last_model_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def fails(*args: Any) -> None:
        seen.append(len(sampled(tmp_path)))  # what a kill would leave now
        raise RuntimeError("no graph")

    monkeypatch.setattr(sampling, "writer", fails)
    sampling.run(sampling_plan(tmp_path))
    assert seen == [8, 8]
    assert {row[0] for row in sampled(tmp_path)} == {"student", "teacher"}


def test_what_a_generation_will_take() -> None:
    costs = sampling.Costs()
    few, many = (
        sampling.Case("student", 1, passes, timed, lambda: None, lambda: None, 1.0)  # type: ignore[arg-type, return-value]
        for passes, timed in ((8, 8), (1024, 32))
    )
    assert costs.of(few, 3) == 10.0
    costs.learn(few, 25.0, 0.8)
    assert costs.of(many, 3) == pytest.approx(0.1 * 4 * 33)
    assert costs.start("teacher") == 25.0
    assert costs.start("autoregressive") == 10.0
    costs.learn(many, 13.0, 102.0)
    assert costs.start("teacher") == 25.0  # only a first case builds


def test_compass_teacher_and_matching_stop_in_time(tmp_path: Path, run_out: Any) -> None:
    run_out(matching, "measure", 1)
    matching.run(matching.MatchingBenchmark(**SIZES, **PACE, batch=(2, 3), targets=("dense",), out=tmp_path))
    assert table(tmp_path, "matching")["not measured"] == ["batch 3, dense"]
    run_out(compass, "one", 1)
    compass.run(compass.CompassBenchmark(**SIZES, **PACE, batch=(2, 3), out=tmp_path))
    run_out(teacher, "measure", 1)
    teacher.run(teacher.TeacherBenchmark(**SIZES, **PACE, batch=(2, 3), out=tmp_path))
    for name in ("compass", "teacher"):
        found = table(tmp_path, name)
        assert [row["batch"] for row in found["rows"]] == [2]
        assert found["not measured"] == ["batch 3"]


def test_a_table_of_kernels_is_kept_row_by_row(tmp_path: Path, run_out: Any) -> None:
    sheet = kernels.Sheet(Ledger("t", ("case",), CPU, tmp_path / "mine.json", goes_on=False), Clock(1000.0))
    sheet.add("a", lambda: None, 1, floor=1.0)
    sheet.add("b", lambda: 1 / 0, 1, flops=1e9)
    assert [(row["case"], row["ms"] is None) for row in table(tmp_path, "mine")["rows"]] == [("a", False), ("b", True)]
    sheet.clock.limit = 0.0
    sheet.add("c", lambda: None, 1)
    assert table(tmp_path, "mine")["not measured"] == ["c"]
    run_out(kernels, "quick", 2)
    sizes: dict[str, Any] = {"vocab": 30, "width": 64, "rows": 4, "positions": 8, "device": "cpu", "checked": True}
    kernels.run(kernels.KernelBenchmark(**sizes, tables=("draw", "head"), out=tmp_path))
    found = table(tmp_path, "kernel-draw")
    assert len(found["rows"]) == 2
    assert "kernel, 8 draws" in found["not measured"]
    assert "kernel-head" not in json.loads((tmp_path / "results.json").read_text())


def test_the_next_takes_what_the_last_took(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(harness.time, "perf_counter", lambda: now[0])
    cost = Estimate(15.0)
    with cost.taking():
        now[0] = 4.0
    assert cost.seconds == 4.0


def test_a_write_that_is_cut_short_keeps_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Ledger("t", ("batch",), CPU, tmp_path / "mine.json")
    first.add([{"batch": 1}])
    monkeypatch.setattr("os.fsync", lambda file: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        first.add([{"batch": 2}])
    assert table(tmp_path, "mine")["rows"] == [{"batch": 1}]
