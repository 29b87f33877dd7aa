"""Clients that read slowly, send slowly or come too early, and a server that breaks down: nobody waits for ever."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import h11
import pytest
from http_parts import HTTP, MODEL, listening
from serve_parts import gate, offline, running

from tsdfm.serve.desk import BEHIND, Told
from tsdfm.serve.jobs import Ask, Seen
from tsdfm.serve.patience import impatient, patient
from tsdfm.serve.served import Served
from tsdfm.serve.settings import ServeSettings
from tsdfm.settings import range_of


def test_a_slow_reader_gets_several_passes_as_one_and_the_same_text() -> None:
    ask, seen = Ask(model="tiny", n=2, seed=3, steps=300), list[Seen]()
    with running(MODEL) as scheduler:
        scheduler.submit(ask, seen.append).done.result(600)
    told, states = Told(), [dict[int, int](), dict[int, int]()]
    for each in seen:  # nobody reads
        told.put(each)
    told.put(None)
    assert len(seen) == 2 * 301
    assert len(told.left) <= BEHIND + 2 + 1
    firsts = dict[int, int]()
    while (each := asyncio.run(told.get())) is not None:
        assert firsts.setdefault(each.index, each.passes) == 0  # what is given is told with the first
        states[each.index] |= dict(each.changes)
        assert each.t == each.passes / each.of
    assert [[state[place] for place in range(20)] for state in states] == offline(MODEL.model, ask)


def test_what_is_told_is_waited_for() -> None:
    async def both() -> list[Seen | None]:
        told = Told()
        first = asyncio.create_task(told.get())
        await asyncio.sleep(0)
        assert not first.done()
        seen = [Seen(0, k, 9, k / 9, []) for k in range(3)]
        for each in (*seen, None):
            told.put(each)
        assert [await first, *[await told.get() for _ in range(3)]] == [*seen, None]
        return told.left

    assert asyncio.run(both()) == []


@dataclass(frozen=True)
class Cold(Served):
    """A model that is not warm before it is told to be."""

    told_to: threading.Event = field(default_factory=threading.Event)

    def warm(self) -> None:
        self.told_to.wait(600)
        super().warm()


def test_a_deadline_is_kept_while_a_model_is_warmed() -> None:
    cold = Cold(MODEL.name, MODEL.model, MODEL.defaults)
    with listening(cold, deadline=0.2) as (address, scheduler):
        try:
            body = {"model": "tiny", "prompt": "a"}
            whole, stream = (HTTP.post(f"{address}/v1/completions", json={**body, "stream": s}) for s in (False, True))
            assert not scheduler.ready
            assert HTTP.get(f"{address}/readyz").status_code == 503
            assert (whole.status_code, stream.status_code) == (504, 200)
            assert "within 0.2 s" in whole.json()["error"]["message"]
            assert "within 0.2 s" in stream.text
        finally:
            cold.told_to.set()


def test_who_waits_when_the_server_breaks_down_is_told() -> None:
    begun = threading.Event()
    with listening(MODEL, rows=1) as (address, scheduler), gate() as hold, ThreadPoolExecutor(2) as crowd:
        scheduler.submit(Ask(model="tiny"), lambda _: (begun.set(), hold.wait(600)))
        assert begun.wait(600)
        waits = [
            crowd.submit(HTTP.post, f"{address}/v1/completions", json={"model": "tiny", "stream": stream})
            for stream in (False, True)
        ]
        while scheduler.queued < 2:
            time.sleep(0.001)
        scheduler.break_down(RuntimeError("the card has gone"))
        whole, stream = (each.result(600) for each in waits)
        assert (whole.status_code, stream.status_code) == (503, 200)
        assert whole.json()["error"]["message"] == "the server has broken down: the card has gone"
        told = [line.removeprefix("data: ") for line in stream.text.splitlines() if line]
        assert "the card has gone" in json.loads(told[-2])["error"]["message"]
        assert HTTP.get(f"{address}/healthz").status_code == 503


def test_connections_without_a_request_are_cut_and_others_are_not() -> None:
    begun = threading.Event()
    with listening(MODEL, head=0.05) as (address, scheduler), gate() as hold, ThreadPoolExecutor(1) as crowd:
        place = (address.removeprefix("http://").split(":")[0], int(address.rpartition(":")[2]))
        scheduler.submit(Ask(model="tiny"), lambda _: (begun.set(), hold.wait(600)))
        assert begun.wait(600)
        waits = crowd.submit(HTTP.post, f"{address}/v1/completions", json={"model": "tiny", "seed": 1})
        while scheduler.queued + scheduler.live < 2:
            time.sleep(0.001)
        with socket.create_connection(place, timeout=600) as silent, contextlib.suppress(ConnectionResetError):
            assert silent.recv(1) == b""
        with socket.create_connection(place, timeout=600) as slow, contextlib.suppress(ConnectionError):
            while True:  # a byte at a time, until it is cut
                slow.sendall(b"a")
                time.sleep(0.01)
        hold.set()
        assert waits.result(600).status_code == 200  # it waited for longer than the others could


def test_a_connection_that_is_used_is_not_cut() -> None:
    """It is cut when no request came between two looks, and not when one did, though both looks find it waiting."""
    cut, looks = list[int](), list[Any]()
    line = object.__new__(patient(10.0))
    line.conn = SimpleNamespace(their_state=h11.IDLE)
    line.transport = SimpleNamespace(abort=lambda: cut.append(1))
    line.loop = SimpleNamespace(call_later=lambda seconds, look: looks.append((seconds, look)))
    line.connections, line.cycle = {line}, None
    line.look()
    for number in range(3):
        line.cycle = SimpleNamespace(response_complete=True, number=number)
        seconds, look = looks.pop()
        assert seconds == 10.0
        look()
    assert cut == []
    looks.pop()[1]()
    assert (cut, looks) == ([1], [])


def test_a_body_that_comes_a_byte_at_a_time_does_not_hold_a_connection() -> None:
    with listening(MODEL, deadline=0.5) as (address, _):
        place = (address.removeprefix("http://").split(":")[0], int(address.rpartition(":")[2]))
        with socket.create_connection(place, timeout=600) as slow:
            head = f"POST /v1/completions HTTP/1.1\r\nHost: {address.removeprefix('http://')}\r\n"
            slow.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n".encode())
            slow.setblocking(False)
            told = b""
            while not told:
                with contextlib.suppress(ConnectionError):
                    slow.sendall(b" ")
                time.sleep(0.01)
                with contextlib.suppress(BlockingIOError):
                    told = slow.recv(4096)
        assert b" 408 " in told


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="no such timeout on this system")
def test_connections_have_the_timeout_of_their_socket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as made:
        impatient(made, 2.5)
        with socket.create_connection(made.getsockname()), made.accept()[0] as there:
            assert there.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 2500


def test_the_longest_deadline_is_one_that_a_socket_takes() -> None:
    longest = range_of(ServeSettings, "deadline").high
    assert longest is not None
    with socket.create_server(("127.0.0.1", 0)) as sock:
        impatient(sock, longest)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == longest * 1000
