"""The scheduler: one worker a device, and between two passes of its network texts join and leave.

    scheduler = Scheduler([[load_served(Path("tsdfm-small"), "cpu", name="tsdfm-small")]], Limits())
    job = scheduler.submit(Ask(model="tsdfm-small", prefixes=("The old man",), n=2, seed=1))
    job.done.result()                      # its texts
    scheduler.close()                      # finish what was begun, take nothing new

A pass takes the live rows of one model, each with its own time, step, dials, given tokens and seed; where several
models have rows they take turns. Rows wait in one queue, in order, for a place with any worker that has one free. A
request that comes while others are being written waits for one pass, not for them.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from tsdfm.errors import UserError
from tsdfm.flow import grid, shape_logits
from tsdfm.flow.noise import salt_of
from tsdfm.methods import bound_of
from tsdfm.samples.given import Asked, as_prompts, read_asked
from tsdfm.serve.jobs import Ask, Busy, Closing, Job, Place, Refused, Seen, blaming
from tsdfm.serve.served import Served
from tsdfm.serve.worker import Worker

NOTHING = torch.zeros(1, 1)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What is taken: `rows` texts at once for each device, `queue` rows waiting, `deadline` seconds for a request."""

    rows: int = 8
    queue: int = 256
    deadline: float = 120.0


@dataclass
class Tally:
    """What a scheduler has done: `own` are the seconds it took between the network's calls, `busy` those of passes."""

    passes: int = 0
    rows: int = 0
    texts: int = 0
    tokens: int = 0
    busy: float = 0.0
    own: float = 0.0


class Scheduler:
    """Workers with their models (`devices`: for each, what it serves), and the queue they share."""

    def __init__(
        self,
        devices: Sequence[Sequence[Served]],
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
        worker: type[Worker] = Worker,
    ) -> None:
        self.limits, self.clock, self.tally = limits, clock, Tally()
        self.broken: BaseException | None = None
        self.exact = dict[str, bool]()  # has a model the same bits alone or in a crowd?
        self.models: Mapping[str, Served] = {served.name: served for served in devices[0]}
        self.changed, self.waiting, self.closing = threading.Condition(), deque[Place](), False
        self.workers = [worker(self, served) for served in devices]

    @property
    def ready(self) -> bool:
        """Are all models warm, and new requests taken?"""
        return not self.closing and all(worker.warm for worker in self.workers)

    @property
    def live(self) -> int:
        """Rows that are being written."""
        return sum(len(worker.live) for worker in self.workers)

    def submit(self, ask: Ask, on_pass: Callable[[Seen], None] | None = None) -> Job:
        """Put a request into the queue. Raises `UserError` for what cannot be asked, `Busy`, or `Closing`."""
        job = self.job(ask, on_pass)
        with self.changed:
            if self.closing:
                raise Closing("the server is going down")
            rows = len(job.asked.numbers)
            if len(self.waiting) + rows > self.limits.queue:
                raise Busy(self.wait())
            self.waiting.extend(Place(job, index) for index in range(rows))
            self.changed.notify_all()
        return job

    def job(self, ask: Ask, on_pass: Callable[[Seen], None] | None) -> Job:
        """A request as rows, all of it checked."""
        if ask.model not in self.models:
            raise Refused("model", f"no model is called {ask.model!r}: there are {', '.join(self.models)}")
        served = self.models[ask.model]
        prompts = as_prompts(ask.prefixes, served.model.velocity.spec.prompted)
        ask = replace(ask, prefixes=tuple(prompts))
        steps = served.defaults.steps if ask.steps is None else ask.steps
        temperature = served.defaults.temperature if ask.temperature is None else ask.temperature
        with blaming("steps"):
            grid(steps)
        with blaming("seed"):
            salt_of(ask.seed, 0)
        with blaming("temperature"):
            shape_logits(NOTHING, temperature)
        with blaming("top_p"):
            shape_logits(NOTHING, top_p=ask.top_p)
        with blaming("jump"):
            served.jump(ask.jump, "blind")
        with blaming("guide"):
            served.jump(ask.jump, ask.guide)
        asked = self.asked(served, ask)
        job = Job(ask, asked, steps, (temperature, ask.top_p), self.clock() + self.limits.deadline, on_pass)
        if on_pass is not None and job.chosen:
            raise Refused(
                "infill", "a text with a gap of several lengths is chosen at the end: to watch it, give one length"
            )
        return job

    def asked(self, served: Served, ask: Ask) -> Asked:
        """The rows of a request."""
        spec, most = served.model.velocity.spec, self.limits.queue
        if not 1 <= ask.n <= most:
            raise Refused("n", f"n must be at least 1 and at most {most}, not {ask.n}")
        with blaming("infill" if ask.infills else "prompt"):
            given = {"prefixes": ask.prefixes, "infills": ask.infills}
            asked = read_asked(served.model.tokenizer, spec.length, spec.anchor, ask.n, 0, **given)
            if asked.texts < len(asked.numbers) and bound_of(spec) is None:
                raise UserError(f"a model of {spec.method} has no bound to choose a gap's length by: give one length")
            if len(asked.numbers) > most:
                raise UserError(f"this takes {len(asked.numbers)} rows, at most {most} are taken: ask for fewer texts")
        return asked

    def wait(self) -> int:
        """Whole seconds until the rows that wait have found a place, by what passes have taken so far."""
        left = sum(place.job.steps for place in self.waiting)
        pace = self.tally.busy / self.tally.rows if self.tally.rows else 0.0
        return max(1, math.ceil(left * pace / len(self.workers)))

    def break_down(self, problem: BaseException) -> None:
        """A worker cannot go on: nothing new is taken, and nobody waits for what will not come."""
        with self.changed:
            self.broken, self.closing = problem, True
            for place in [*self.waiting, *(place for worker in self.workers for place in worker.live)]:
                place.job.fail(RuntimeError(f"the server has broken down: {problem}"))
            self.changed.notify_all()

    def close(self, *, wait: bool = True) -> None:
        """Take nothing new, write what is there to its end, and stop; without `wait`, give it up."""
        with self.changed:
            self.closing = True
            if not wait:
                for place in [*self.waiting, *(place for worker in self.workers for place in worker.live)]:
                    place.job.cancel()
            self.changed.notify_all()
        for worker in self.workers:
            worker.thread.join()
