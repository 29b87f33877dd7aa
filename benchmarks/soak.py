"""Many clients for a while, every answer checked: `python -m benchmarks soak`.

Each client asks again as soon as it is answered, with a prompt, steps, temperature and seed of its own. Afterwards
texts are compared with what `TextModel.sample(batch=1)` writes for the same seed, which is the same bits where the
server's batches have one row, as on a CPU. What may go wrong is a full queue, nothing else.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import say
from benchmarks.serve import ask, serving
from tsdfm.errors import UserError
from tsdfm.serve.scheduler import Limits, Scheduler
from tsdfm.serve.served import load_served
from tsdfm.settings import ModelPath, option
from tsdfm.store.bundle import default_model


@dataclass(frozen=True, kw_only=True)
class Soak:
    """How long, and by whom."""

    model: ModelPath | None = option(None, "a model; none: the shipped one")
    clients: int = option(200, "clients that ask all the time")
    seconds: float = option(60.0, "how long")
    rows: int = option(8, "texts in the running batch")
    queue: int = option(150, "texts that may wait: fewer than the clients, so that some are told to come back")
    steps: int = option(4, "most passes of a text")
    check: int = option(500, "answers that are compared with the offline text, evenly chosen; 0 is all")


def run(settings: Soak) -> None:
    """Ask, then compare."""
    path = settings.model or Path(default_model())
    served = load_served(path, "cpu", name="model")
    limits = Limits(rows=settings.rows, queue=settings.queue, deadline=3600)
    with serving(Scheduler([[served]], limits)) as (address, scheduler):
        spawn = multiprocessing.get_context("spawn")
        answers = spawn.Queue()
        asker = spawn.Process(target=clients, args=(address, settings, answers))
        time.sleep(2)
        before = resident()
        asker.start()
        halfway: list[int] = []
        timer = time.monotonic()
        while asker.is_alive() and answers.empty():
            time.sleep(0.5)
            if not halfway and time.monotonic() - timer > settings.seconds / 2:
                halfway.append(resident())
        after = resident()  # before this process takes all answers in, which are no part of the server
        found: list[tuple[dict[str, Any], Any]] | str = answers.get()
        asker.join()
        if isinstance(found, str):
            raise UserError(f"a request failed: {found}")
        left = scheduler.live + len(scheduler.waiting)
    good = [(body, answer) for body, answer in found if answer is not None]
    refused = len(found) - len(good)
    every = max(1, len(good) // settings.check) if settings.check else 1
    wrong = [body for body, answer in good[::every] if texts(served, body) != [c["text"] for c in answer["choices"]]]
    mib = [round(size / 2**20) for size in (before, *halfway, after)]
    say(f"{len(found)} requests: {len(good)} answered, {refused} told to come back; {left} rows left over")
    say(f"{len(good[::every])} texts compared with the offline ones: {len(wrong)} differ")
    say(f"resident memory before, halfway and after: {' → '.join(map(str, mib))} MiB")
    if wrong or left:
        raise UserError(f"the soak failed, for instance with {wrong[:1]}")


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def texts(served: Any, body: dict[str, Any]) -> list[str]:
    """The same request offline."""
    made = served.model.sample(
        body["n"], body["steps"], body["seed"], prefix=body["prompt"], temperature=body["temperature"], batch=1
    )
    out: list[str] = made.texts
    return out


def clients(address: str, settings: Soak, answers: Any) -> None:
    """All of them, in a process of its own."""
    try:
        answers.put(asyncio.run(everyone(address, settings)))
    except Exception as problem:  # the parent says it
        answers.put(f"{type(problem).__name__}: {problem}")


async def everyone(address: str, settings: Soak) -> list[tuple[dict[str, Any], Any]]:
    """What each asked for and got."""
    end = time.monotonic() + settings.seconds
    each = await asyncio.gather(*(one(address, number, settings, end) for number in range(settings.clients)))
    say(str(Counter("answered" if answer else "429" for part in each for _, answer in part)))
    return [pair for part in each for pair in part]


async def one(address: str, number: int, settings: Soak, end: float) -> list[tuple[dict[str, Any], Any]]:
    """A client that asks again and again."""
    made: list[tuple[dict[str, Any], Any]] = []
    while time.monotonic() < end:
        turn = len(made)
        body = {
            "model": "model",
            "prompt": ("", "The", "It was a", "I ")[turn % 4],
            "echo": True,
            "seed": number * 100_000 + turn,
            "steps": 1 + (number + turn) % settings.steps,
            "n": 1 + turn % 2,
            "temperature": (1.0, 0.7, 0.0)[number % 3],
        }
        _, answer = await ask(address, body)
        made.append((body, answer))
        if answer is None:
            await asyncio.sleep(0.05)
    return made
