"""The scheduler: one worker a device, and between two passes of its network texts join and leave.

    scheduler = Scheduler([[load_served(Path("tsdfm-stories"), "cpu", name="tsdfm-stories")]], Limits())
    job = scheduler.submit(Ask(model="tsdfm-stories", prefixes=("One day, a dog named Max was hungry.",), n=2, seed=1))
    job.done.result()                      # its texts
    scheduler.close()                      # finish what was begun, take nothing new

A pass takes the live rows of one model, each with its own time, step, dials, given tokens and seed; where several
models have rows they take turns. Rows wait in one queue, in order, for a place with any worker that has one free. A
request that comes while others are being written waits for one pass, not for them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from tsdfm.serve.intake import Intake, Limits
from tsdfm.serve.jobs import Busy, Job, Place
from tsdfm.serve.served import Served
from tsdfm.serve.worker import Worker

__all__ = ["Limits", "Scheduler"]


class Scheduler(Intake):
    """Workers with their models (`devices`: for each, what it serves), and the queue they share."""

    def __init__(
        self,
        devices: Sequence[Sequence[Served]],
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
        worker: type[Worker] = Worker,
    ) -> None:
        super().__init__({served.name: served for served in devices[0]}, limits, clock)
        self.changed, self.waiting = threading.Condition(), deque[Place]()
        self.workers = [worker(self, served) for served in devices]

    @property
    def ready(self) -> bool:
        """Are all models warm, and new requests taken?"""
        return not self.closing and all(worker.warm for worker in self.workers)

    @property
    def live(self) -> int:
        """Rows that are being written."""
        return sum(len(worker.live) for worker in self.workers)

    @property
    def queued(self) -> int:
        """Rows that wait for a place."""
        return len(self.waiting)

    def take(self, job: Job) -> None:
        """Put the rows of a job into the queue."""
        with self.changed:
            if self.closing:
                raise self.closed()
            rows = len(job.asked.numbers)
            if len(self.waiting) + rows > self.limits.queue:
                left = sum(place.job.steps for place in self.waiting)
                raise Busy(self.pause(left, len(self.workers)))
            self.waiting.extend(Place(job, index) for index in range(rows))
            self.changed.notify_all()

    def break_down(self, problem: BaseException) -> None:
        """A worker cannot go on: nothing new is taken, and nobody waits for what will not come."""
        with self.changed:
            self.broken, self.closing = problem, True
            for place in [*self.waiting, *(place for worker in self.workers for place in worker.places)]:
                place.job.fail(self.closed())
            self.changed.notify_all()

    def close(self, *, wait: bool = True) -> None:
        """Take nothing new, write what is there to its end, and stop; without `wait`, give it up."""
        with self.changed:
            self.closing = True
            if not wait:
                for place in [*self.waiting, *(place for worker in self.workers for place in worker.places)]:
                    place.job.cancel()
            self.changed.notify_all()
        for worker in self.workers:
            worker.thread.join()
