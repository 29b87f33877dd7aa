"""The benchmark's parts: a real server on loopback is asked by it, and its ways differ in who may join."""

from __future__ import annotations

import asyncio

import pytest
from benchmarks.serve import (
    ServeBenchmark,
    Static,
    Unloaded,
    drive_all,
    drive_clients,
    loads,
    quantiles,
    serving,
    told,
)
from serve_parts import served

from tsdfm.serve.intake import Tally
from tsdfm.serve.jobs import Ask, Seen
from tsdfm.serve.scheduler import Limits, Scheduler


def test_requests_come_and_are_timed() -> None:
    with serving(Scheduler([[served()]], Limits(rows=2))) as (address, scheduler):
        seconds, each = asyncio.run(drive_all(address, {"model": "tiny", "steps": 2}, [0.0, 0.01, 0.0]))
        assert len(each) == 3
        assert 0 < max(each) <= seconds
        assert scheduler.tally.texts == 3
        assert len(asyncio.run(drive_clients(address, {"model": "tiny", "steps": 1}, clients=2, requests=5))[1]) == 5
    assert scheduler.tally.texts == 8
    with serving(Scheduler([[served()]], Limits())) as (address, _), pytest.raises(RuntimeError, match="404"):
        asyncio.run(drive_all(address, {"model": "gone"}, [0.0]))


def test_a_static_batch_lets_nobody_join() -> None:
    scheduler, told_of = Scheduler([[served()]], Limits(rows=4), worker=Static), list[tuple[str, int]]()
    late = list[object]()

    def first(seen: Seen) -> None:
        told_of.append(("first", seen.passes))
        if seen.passes == 1:
            late.append(scheduler.submit(Ask(model="tiny", steps=1), lambda s: told_of.append(("late", s.passes))))

    scheduler.submit(Ask(model="tiny", steps=3), first).done.result(600)
    scheduler.close()
    assert told_of == [("first", n) for n in range(4)] + [("late", 0), ("late", 1)]


def test_a_row_of_the_table() -> None:
    each = [float(n) for n in range(1, 102)]
    assert quantiles(each) == (51.0, 96.0, 100.0)
    tally = Tally(passes=10, rows=30, turns=10, own=5e-3, joined=2, own_joined=1e-3, slow=1)
    slow, quick = (
        {"seconds": s, "each": [x * f for x in each], "tally": tally} for s, f in ((202.0, 1.0), (101.0, 0.5))
    )
    row = told(quick, slow, Unloaded(offline=2.0, batch=4.0, alone=0.5))
    assert row["of offline"] == "50%"
    assert (row["texts/s"], row["texts/s, by one by one"], row["p95, by one by one"]) == (1.0, 2.0, 0.5)
    assert (row["p95 s"], row["p95, by a batch"], row["p95, by one alone"]) == (48.0, 12.0, 96.0)
    assert (row["own ms a pass"], row["when nobody comes"]) == (pytest.approx(0.5), pytest.approx(0.5))
    assert (row["rows a pass"], row["over 0.3 ms"], row["passes with newcomers"]) == (3.0, "10%", "20%")


def test_the_loads_of_the_server() -> None:
    found = dict(loads(ServeBenchmark(requests=100, clients=7, load=0.5), offline=10.0))
    assert found.pop("one client") == (1, 32)
    assert found.pop("7 clients") == (7, 100)
    ((name, gaps),) = found.items()
    assert name == "at 50% of offline"
    assert isinstance(gaps, list)
    assert 15 < sum(gaps) < 25  # a hundred at five a second
    assert not dict(loads(ServeBenchmark(loads=()), offline=10.0))
