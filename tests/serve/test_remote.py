"""Devices in processes of their own: the same texts, streams, refusals and ends as inside one process."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from serve_parts import gate, offline, served
from starlette.testclient import TestClient
from test_scheduler import CROWD

import processes  # noqa: F401 (its server has torch loaded)
from tsdfm.errors import UserError
from tsdfm.serve.app import create_app
from tsdfm.serve.intake import Limits
from tsdfm.serve.jobs import Ask, Broken, Busy, Closing, Late, Seen
from tsdfm.serve.remote import Remote
from tsdfm.serve.served import Served
from tsdfm.serve.settings import ServeSettings

MODEL = served(source="uniform")


def models(**spec: Any) -> list[Served]:
    return [served(source="uniform", **spec)]


def models_by_a_passing_thread() -> list[Served]:
    if threading.current_thread() is threading.main_thread():
        raise UserError("the team of threads that this one calls stays for good, beside that of the worker")
    return models()


def nothing() -> list[Served]:
    raise UserError("there is no such model")


@contextmanager
def running(devices: int = 1, **limits: Any) -> Iterator[Remote]:
    remote = Remote([partial(models)] * devices, Limits(**limits))
    try:
        yield remote
    finally:
        remote.close(wait=False)


def until(what: Any) -> None:
    while not what():
        time.sleep(0.001)


def test_texts_streams_and_ends_are_those_of_one_process() -> None:
    seen, watched = list[Seen](), Ask(model="tiny", seed=9, steps=5, prefixes=("ab",))
    with running(rows=3) as remote:
        jobs = [remote.submit(ask) for ask in CROWD]
        job = remote.submit(watched, seen.append)
        for each in [*jobs, job]:
            assert [text.tokens for text in each.done.result(600)] == offline(MODEL.model, each.ask)
        assert [(each.passes, each.of, each.t) for each in seen] == [(k, 5, k / 5) for k in range(6)]
        until(lambda: remote.ready and remote.tally.texts == 1 + sum(len(each.asked.numbers) for each in jobs))
        assert remote.exact == {"tiny": True}
        assert remote.models["tiny"].fingerprint == MODEL.fingerprint
        with pytest.raises(UserError, match="three equal steps"):
            remote.submit(Ask(model="tiny", steps=2, jump="remdm-loop")).done.result(600)
        with pytest.raises(UserError, match="without a compass"):
            remote.submit(Ask(model="tiny", guide="token"))
        left = [remote.submit(Ask(model="tiny", seed=seed, steps=20)) for seed in range(5)]
        remote.close()
        assert [[text.tokens for text in each.done.result(0)] for each in left] == [
            offline(MODEL.model, each.ask) for each in left
        ]
        with pytest.raises(Closing):
            remote.submit(Ask(model="tiny"))
        assert remote.broken is None
        assert not remote.devices[0].process.is_alive()


def test_rows_are_counted_given_up_and_bounded() -> None:
    begun = threading.Event()
    with running(rows=1, queue=3) as remote, gate() as hold:
        first = remote.submit(Ask(model="tiny", steps=10**6), lambda _: (begun.set(), hold.wait(600)))
        assert begun.wait(600)
        remote.submit(Ask(model="tiny", n=2))
        assert (remote.live, remote.queued) == (1, 2)
        with pytest.raises(Busy) as caught:
            remote.submit(Ask(model="tiny", n=2))
        assert caught.value.seconds >= 1
        last = remote.submit(Ask(model="tiny", seed=3))
        hold.set()
        first.cancel()
        with pytest.raises(CancelledError):
            first.done.result(0)
        assert [text.tokens for text in last.done.result(600)] == offline(MODEL.model, last.ask)
        until(lambda: remote.live == remote.queued == 0)


def test_what_is_said_of_a_job_that_has_ended_does_no_harm() -> None:
    with running() as remote:
        (device,) = remote.devices
        remote.on_row(device, 99)  # its last text was written while it was given up
        device.line.say("cancel", 99)
        job = remote.submit(Ask(model="tiny", seed=2, steps=3))
        assert [text.tokens for text in job.done.result(600)] == offline(MODEL.model, job.ask)


def test_a_deadline_is_kept() -> None:
    with running(deadline=0.2) as remote, pytest.raises(Late, match=r"within 0\.2 s"):
        remote.submit(Ask(model="tiny", steps=10**6)).done.result(600)


def test_devices_share_requests_and_one_that_dies_is_noticed() -> None:
    with running(2, rows=1) as remote:
        meet = threading.Barrier(2)
        jobs = [remote.submit(Ask(model="tiny", steps=10**6), lambda s: s.passes or meet.wait(600)) for _ in range(2)]
        until(lambda: meet.broken or meet.n_waiting == 0)
        assert [len(device.jobs) for device in remote.devices] == [1, 1]
        assert remote.devices[0].process.pid is not None
        os.kill(remote.devices[0].process.pid, signal.SIGKILL)
        for job in jobs:
            with pytest.raises(RuntimeError, match="exit code -9"):
                job.done.result(600)
        health = TestClient(create_app(remote, ServeSettings())[0]).get("/healthz")
        assert (health.status_code, "exit code -9" in health.text) == (503, True)
        with pytest.raises(Broken, match="exit code -9"):
            remote.submit(Ask(model="tiny"))


def test_no_thread_that_stays_calls_a_team_of_its_own_before_the_worker_does() -> None:
    remote = Remote([models_by_a_passing_thread], Limits())
    assert remote.submit(Ask(model="tiny", steps=2)).done.result(600)
    remote.close()


def test_what_cannot_be_loaded_is_refused_here() -> None:
    with pytest.raises(UserError, match="no such model"):
        Remote([nothing], Limits())
