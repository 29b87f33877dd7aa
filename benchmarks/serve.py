"""The server under load, against the naive ways to serve: `python -m benchmarks serve`.

    one by one    a request is written to its end before the next one begins
    static        those who wait are written together, and who comes meanwhile waits for all of them
    by the step   `tsdfm serve`: who comes joins at the next pass

All of them are the same server on loopback, with the same batch shapes, asked by a process of its own: a fixed number
of requests for one text each, by clients who ask again as soon as they are answered, or at random times (open loop:
nobody waits for an answer before the next one asks) at a share of what `TextModel.sample` writes offline. Times are
those of the asking side. Compare them within one run: they are ratios to the first way, and to offline. The unloaded
latency that those under load are compared with is that of a text in a full batch with nobody waiting, offline; that of
a text by itself is there besides. A way's server is started once, for all kinds of load.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import uvicorn

from benchmarks.harness import Ledger, say, world
from benchmarks.sampling import SamplingBenchmark, text_model
from tsdfm.errors import UserError
from tsdfm.samples.model import load
from tsdfm.serve.app import create_app
from tsdfm.serve.intake import SLOW, Intake, Limits, Tally
from tsdfm.serve.remote import BEAT, Remote
from tsdfm.serve.served import Served, fitted, ready
from tsdfm.serve.settings import ServeSettings
from tsdfm.serve.worker import Worker
from tsdfm.settings import ModelPath, option
from tsdfm.store.bundle import default_model
from tsdfm.store.defaults import SampleDefaults

Way = Literal["one by one", "static", "by the step"]
Load = Literal["one", "clients", "times"]
WAYS: tuple[Way, ...] = get_args(Way)
LOADS: tuple[Load, ...] = get_args(Load)
LONE = 32  # requests of one client by itself, at most
WARM = 3  # calls that compile, record and replay


@dataclass(frozen=True, kw_only=True)
class ServeBenchmark:
    """What to time."""

    model: ModelPath | None = option(None, "a model; none: the shipped one on a CPU, random weights on a GPU")
    preset: str = option("170m", "size of the random network")
    vocab: int = option(50257, "its |V|")
    length: int = option(1024, "its tokens of a text")
    requests: int = option(64, "requests of each measurement, one text each; on a GPU eight times as many", low=1)
    clients: int = option(64, "clients that ask at once, each again when it is answered", low=1)
    rows: int | None = option(None, "texts in the running batch; none: 8 on a CPU, 32 on a GPU", low=1)
    shapes: tuple[int, ...] = option((), "batch shapes; empty: those of `tsdfm serve`", low=1)
    steps: int = option(8, "network passes of a text", low=1)
    load: float = option(0.7, "requests that come in a second, as a share of what is written offline", above=0)
    quick: str = option("auto", "auto, compile, record or off, as for `tsdfm serve`")
    seed: int = option(0, "of the times at which requests come")
    rounds: int = option(
        1, "how often each load is asked; with more, what it is compared with is timed before each", low=1
    )
    ways: tuple[Way, ...] = option(WAYS, "which of the ways")
    loads: tuple[Load, ...] = option(LOADS, "which loads: one client by itself, all clients, requests at random times")
    device: str = option("auto", "auto, cpu or cuda")
    out: Path | None = option(None, "folder for the table as JSON")


Takes = TypeVar("Takes", bound=Intake)


class Static(Worker):
    """Takes those who wait only when it has nobody."""

    def admit(self) -> None:
        if not self.live:
            super().admit()


def run(settings: ServeBenchmark) -> None:
    """Every way, all at once and over time."""
    device = world(settings.device).device
    settings = settings if device.type == "cpu" else replace(settings, requests=8 * settings.requests)
    rows = most_rows(settings)
    served = model_of(settings, rows)
    unloaded = unloaded_of(served, settings, rows)
    say(
        f"offline: {unloaded.offline:.3g} texts/s in batches of {rows}, {unloaded.batch * 1e3:.3g} ms each; "
        f"one text by itself takes {unloaded.alone * 1e3:.3g} ms"
    )
    again = partial(unloaded_of, served, settings, rows) if settings.rounds > 1 else lambda: unloaded
    title = f"serve: {served.name}, {served.length} tokens, {settings.steps} passes, {settings.requests} requests"
    place = settings.out and settings.out / "serve.json"
    table = Ledger(title, ("requests", "way"), device, place, goes_on=False)
    first: dict[str, dict[str, Any]] = {}
    for way, kind, most in zip(WAYS, (Worker, Static, Worker), (1, rows, rows), strict=True):
        for name, found, before in measured(served.name, settings, kind, most, again) if way in settings.ways else ():
            row = told(found, first.setdefault(name, found), before)
            kept = row if WAYS[0] in settings.ways else {n: v for n, v in row.items() if not n.endswith("one by one")}
            table.add([{"requests": name, "way": way, **kept}])
            say(json.dumps({"requests": name, "way": way, **row, **asdict(before)}))
    table.show()


@dataclass(frozen=True)
class Unloaded:
    """Offline: texts in a second, and the seconds of a full batch and of a text by itself."""

    offline: float
    batch: float
    alone: float


def unloaded_of(served: Served, settings: ServeBenchmark, rows: int) -> Unloaded:
    """Timed now."""
    offline = texts_a_second(served, settings, rows)
    return Unloaded(offline, rows / offline, 1 / texts_a_second(served, settings, 1, min(settings.requests, LONE)))


def loads(settings: ServeBenchmark, offline: float) -> Iterator[tuple[str, tuple[int, int] | list[float]]]:
    """What the server is asked: a name, and clients with their requests, or the times between requests."""
    times, count = random.Random(settings.seed), settings.requests
    if "one" in settings.loads:
        yield "one client", (1, min(count, LONE))
    if "clients" in settings.loads:
        yield f"{min(settings.clients, count)} clients", (settings.clients, count)
    if "times" in settings.loads:
        gaps = [times.expovariate(settings.load * offline) for _ in range(count)]
        yield f"at {settings.load:.0%} of offline", gaps


def most_rows(settings: ServeBenchmark) -> int:
    """Texts in the running batch."""
    return settings.rows or (8 if world(settings.device).device.type == "cpu" else 32)


def models_of(settings: ServeBenchmark, rows: int) -> list[Served]:
    """The models of a device, for its own process."""
    return [model_of(settings, rows)]


def model_of(settings: ServeBenchmark, rows: int) -> Served:
    """The model, in batches of the shapes that are asked for."""
    device = world(settings.device).device
    quick = "compile" if settings.quick == "auto" and device.type == "cuda" else settings.quick
    defaults = SampleDefaults(steps=settings.steps)
    if settings.model is None and device.type == "cuda":
        sizes = SamplingBenchmark(preset=settings.preset, vocab=settings.vocab, length=settings.length)
        model, name = text_model(sizes, device, step_size=True), settings.preset
    else:
        path = settings.model or default_model()
        model, name = load(path, settings.device), path.name
    return fitted(Served(name, ready(model, quick), defaults, shapes=settings.shapes), rows)


def texts_a_second(served: Served, settings: ServeBenchmark, batch: int, texts: int | None = None) -> float:
    """Offline, in batches, once warm."""
    count = texts or max(batch, settings.requests // batch * batch)
    for _ in range(WARM if served.device.type == "cuda" else 1):
        served.model.sample(n=batch, steps=settings.steps, batch=batch)
    return count / served.model.sample(n=count, steps=settings.steps, batch=batch).seconds


def measured(
    name: str, settings: ServeBenchmark, worker: type[Worker], rows: int, unloaded: Callable[[], Unloaded]
) -> Iterator[tuple[str, dict[str, Any], Unloaded]]:
    """For every kind of load the seconds of all requests and of each, and what the scheduler took of its own.

    Every round has what it is compared with from just before it: on a machine with other work, speed changes.
    """
    limits, load = Limits(rows=rows, queue=10**6, deadline=3600), partial(models_of, settings, most_rows(settings))
    began = time.perf_counter()
    with serving(Remote([load], limits, worker)) as (address, scheduler):
        while not scheduler.ready:
            if scheduler.broken:
                raise UserError(f"the server has broken down: {scheduler.broken}")
            time.sleep(0.01)
        say(f"the server is ready after {time.perf_counter() - began:.3g} s")
        asked = loads(settings, unloaded().offline)
        for (kind, how), turn in product(asked, range(settings.rounds)):
            reference, before = unloaded(), replace(scheduler.tally)
            body = {"model": name, "steps": settings.steps, "temperature": 1.0}
            answers = multiprocessing.get_context("spawn").Queue()
            asker = multiprocessing.get_context("spawn").Process(target=drive, args=(address, body, how, answers))
            asker.start()
            answer = answers.get()
            asker.join()
            if isinstance(answer, str):
                raise UserError(f"a request failed: {answer}")
            seconds, spent = answer
            time.sleep(2 * BEAT)  # by then the tally is told
            after = scheduler.tally
            made = {field.name: getattr(after, field.name) - getattr(before, field.name) for field in fields(Tally)}
            label = kind if settings.rounds == 1 else f"{kind}, round {turn + 1}"
            yield label, {"seconds": seconds, "each": sorted(spent), "tally": Tally(**made)}, reference


def told(found: dict[str, Any], first: dict[str, Any], unloaded: Unloaded) -> dict[str, Any]:
    """A row of the table: latencies in seconds, and ratios."""
    count, rate = len(found["each"]), len(found["each"]) / found["seconds"]
    cut, tally = dict(zip(("p50", "p95", "p99"), quantiles(found["each"]), strict=True)), found["tally"]
    alone = tally.turns - tally.joined
    return {
        "texts/s": rate,
        "of offline": f"{rate / unloaded.offline:.0%}",
        **{f"{name} s": value for name, value in cut.items()},
        "p95, by a batch": cut["p95"] / unloaded.batch,
        "p95, by one alone": cut["p95"] / unloaded.alone,
        "texts/s, by one by one": rate / (count / first["seconds"]),
        "p95, by one by one": cut["p95"] / quantiles(first["each"])[1],
        "rows a pass": tally.rows / max(1, tally.passes),
        "own ms a pass": tally.own / max(1, tally.turns) * 1e3,
        "when nobody comes": (tally.own - tally.own_joined) / max(1, alone) * 1e3,
        f"over {SLOW * 1e3:g} ms": f"{tally.slow / max(1, tally.turns):.0%}",
        "passes with newcomers": f"{tally.joined / max(1, tally.turns):.0%}",
    }


def quantiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The 50th, 95th and 99th percentile."""
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return cuts[49], cuts[94], cuts[98]


@contextmanager
def serving(scheduler: Takes) -> Iterator[tuple[str, Takes]]:
    """A server on loopback for as long as the block."""
    sock = socket.create_server(("127.0.0.1", 0), backlog=4096)
    _, guarded = create_app(scheduler, ServeSettings(queue=10**6, deadline=3600))
    server = uvicorn.Server(uvicorn.Config(guarded, log_level="warning", access_log=False))
    thread = threading.Thread(target=server.run, args=([sock],))
    thread.start()
    try:
        yield f"127.0.0.1:{sock.getsockname()[1]}", scheduler
    finally:
        server.should_exit = True
        thread.join()


def drive(address: str, body: dict[str, Any], how: tuple[int, int] | list[float], answers: Any) -> None:
    """Ask at the given times, or by so many clients so often, in a process of its own; tell the seconds."""
    asking = drive_clients(address, body, *how) if isinstance(how, tuple) else drive_all(address, body, how)
    try:
        answers.put(asyncio.run(asking))
    except Exception as problem:  # the parent says it
        answers.put(f"{type(problem).__name__}: {problem}")


async def drive_clients(address: str, body: dict[str, Any], clients: int, requests: int) -> tuple[float, list[float]]:
    """So many requests by clients who each ask again when they are answered."""
    begun, left, spent = time.perf_counter(), iter(range(requests)), list[float]()

    async def client() -> None:
        for seed in left:
            seconds, _ = await ask(address, {**body, "seed": seed})
            spent.append(seconds)

    await asyncio.gather(*(client() for _ in range(clients)))
    return time.perf_counter() - begun, spent


async def drive_all(address: str, body: dict[str, Any], waits: list[float]) -> tuple[float, list[float]]:
    """One request after every wait, whoever has been answered."""
    begun, tasks = time.perf_counter(), []
    for seed, wait in enumerate(waits):
        await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(ask(address, {**body, "seed": seed})))
    spent = await asyncio.gather(*tasks)
    return time.perf_counter() - begun, [seconds for seconds, _ in spent]


async def ask(address: str, body: dict[str, Any]) -> tuple[float, Any]:
    """Seconds of a request, and its answer; one that fails ends the benchmark, but for a full queue."""
    begun = time.perf_counter()
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    )
    writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    answer = await reader.read()
    writer.close()
    status, (_, _, text) = int(answer.split(None, 2)[1]), answer.partition(b"\r\n\r\n")
    if status not in (200, 429):
        raise RuntimeError(f"{status}: {text.decode('utf-8', 'replace')}")
    return time.perf_counter() - begun, json.loads(text) if status == 200 else None
