"""Several models at a time: each is trained by a process of its own as soon as what it needs is there.

Small models leave most of a large GPU idle; several of them share it well (better still with `nvidia-cuda-mps-control
-d` running). What a process says goes to OUT/logs/NAME.log. Where one fails, what does not need it goes on.

Under MPS an error of one process on the device, or a process that is killed, can take all the others along. So one that
broke off is begun again from its last checkpoint; one that was refused its settings (code 2) or told to stop is not.
One that found no memory beside others is begun again when fewer of them run.
"""

from __future__ import annotations

import math
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tsdfm import terminal
from tsdfm.engine.signals import Signals, Stopped
from tsdfm.errors import UserError
from tsdfm.start import NO_MEMORY
from tsdfm.store.files import disk

POLL = 0.1
PAUSE = 15.0  # seconds before another try: an MPS server needs some to come back
REFUSED = 2
FINAL = (REFUSED, 130, 143)  # or told to stop

Say = Callable[[str], None]


@dataclass
class Job:
    """A model to be trained: the process once it runs, and how it ended."""

    key: str
    after: frozenset[str]
    process: subprocess.Popen[bytes] | None = None
    log: IO[bytes] | None = None
    began: float = 0.0
    code: int | None = None
    tries: int = 0
    not_before: float = 0.0
    beside: float = math.inf
    """It found no memory beside so many others: from then on it runs beside fewer."""
    seen: int = 0
    """How many others have run beside it at once, since it began."""


@dataclass
class Crew:
    """Runs jobs, at most `most` at a time, in their order as far as what they need allows."""

    jobs: list[Job]
    command: Callable[[str], Sequence[str]]  # key → the command that trains it
    most: int
    logs: Path
    say: Say = terminal.say
    retry: int = 0  # how often a process that broke off is begun again
    pause: float = PAUSE
    limit: float | None = None  # seconds after which what still runs is saved and stopped
    failed: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        """Run all. A failure is told when all others are done.

        A signal, or the end of the time, is passed on to the processes, which save.
        """
        end, late = time.monotonic() + (math.inf if self.limit is None else self.limit), False
        with Signals("stopping: what runs saves first") as signals:
            try:
                while any(job.code is None for job in self.jobs):
                    self.collect()
                    late = time.monotonic() >= end and any(job.code is None for job in self.jobs)
                    if late or signals.number is not None:
                        break
                    self.start()
                    time.sleep(POLL)
            except KeyboardInterrupt:
                self.kill()
                raise
            finally:
                self.stop()
            if late or signals.number is not None:
                for key, why in self.failed.items():
                    self.say(f"── {key} failed: {why}")
                left = ", ".join(job.key for job in self.jobs if job.code != 0 and job.key not in self.failed)
                self.say(f"── stopped; what was running has saved, and the same command goes on with: {left}")
                raise Stopped(128 + (signals.number or signal.SIGTERM))
        if self.failed:
            raise UserError("; ".join(f"{key}: {why}" for key, why in self.failed.items()))

    def start(self) -> None:
        """Start what may start."""
        done = {job.key for job in self.jobs if job.code == 0}
        known = {job.key for job in self.jobs}
        for job in self.jobs:
            if job.code is not None or job.process is not None:
                continue
            lost = sorted(key for key in job.after if key in self.failed)
            if lost:
                job.code, self.failed[job.key] = 1, f"needs {lost[0]}"
            elif job.after & known <= done and self.room(job):
                self.launch(job)
            elif job.after & known <= done and job.beside < math.inf and time.monotonic() >= job.not_before:
                break  # what waits for memory goes before what comes after it

    def room(self, job: Job) -> bool:
        """May one more run now, and this one, and those that run bear it?"""
        bear = (one.beside for one in self.jobs if one.process is not None and one.code is None)
        return self.running() < min(self.most, job.beside, *bear) and time.monotonic() >= job.not_before

    def running(self) -> int:
        return sum(job.process is not None and job.code is None for job in self.jobs)

    def launch(self, job: Job) -> None:
        with disk(self.logs):
            self.logs.mkdir(parents=True, exist_ok=True)
            job.log = (self.logs / f"{job.key}.log").open("ab" if job.tries or job.beside < math.inf else "wb")
        job.process = subprocess.Popen(self.command(job.key), stdout=job.log, stderr=subprocess.STDOUT)
        job.began, job.seen = time.monotonic(), 0
        job.tries += 1
        self.say(f"── {job.key} begins{' again' if job.tries > 1 or job.beside < math.inf else ''}")

    def collect(self) -> None:
        """Take note of what has ended."""
        others = self.running() - 1
        for job in self.jobs:
            job.seen = max(job.seen, others)
        for job in self.jobs:
            if job.process is None or job.code is not None or job.process.poll() is None:
                continue
            job.code = job.process.returncode
            if job.log is not None:
                job.log.close()
            took = f"{time.monotonic() - job.began:.0f} s"
            crowded = job.code == REFUSED and job.seen > 0 and NO_MEMORY in self.reason(job)
            again = job.code != 0 and job.code not in FINAL and job.tries <= self.retry
            ending = "broke off and will begin again" if again else "is done" if job.code == 0 else "FAILED"
            if crowded:
                ending = "found no memory beside the others, and will begin again when fewer run"
            self.say(f"── {job.key} {ending}, {took}")
            if crowded:
                job.code, job.process, job.beside, job.tries = None, None, job.seen, job.tries - 1
            elif again:
                job.code, job.process, job.not_before = None, None, time.monotonic() + self.pause
            elif job.code:
                self.failed[job.key] = self.reason(job)

    def reason(self, job: Job) -> str:
        """The last line a failed process said, and where the rest is."""
        path = self.logs / f"{job.key}.log"
        if job.code is not None and job.code < 0:
            more = ", perhaps for want of memory: try fewer jobs" if job.code == -signal.SIGKILL else ""
            return f"ended by signal {-job.code}{more} (see {path})"
        lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
        return f"{lines[-1].strip() if lines else f'ended with code {job.code}'} (see {path})"

    def stop(self) -> None:
        """Ask what still runs to save and leave, and wait for it; at another Ctrl-C no longer."""
        left = [job.process for job in self.jobs if job.process is not None and job.process.poll() is None]
        for process in left:
            process.terminate()
        try:
            for process in left:
                process.wait()
        except KeyboardInterrupt:
            self.kill()
            raise
        finally:
            for job in self.jobs:
                if job.log is not None:
                    job.log.close()

    def kill(self) -> None:
        """End what still runs now: what it has written is whole."""
        for job in self.jobs:
            if job.process is not None and job.process.poll() is None:
                job.process.kill()
                job.process.wait()
