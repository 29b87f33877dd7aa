"""Devices in processes of their own, so that answering requests never keeps a device waiting.

    remote = Remote([partial(load_models, "cuda:0"), partial(load_models, "cuda:1")], Limits(rows=32))
    remote.submit(Ask(model="tsdfm-stories", n=2, seed=1)).done.result()
    remote.close()

A process has a device with its models and a `Scheduler` that makes its passes. This one keeps the HTTP server, reads
and checks requests, and turns tokens into text: for that it has the models without their weights. Between the two goes
a line of small messages: what is to be written, what is given up, what was written, and every pass of a text that is
watched. A request goes to the device with the fewest rows, all of its texts to the same.

A device's process ends when it is told to, or when the line breaks because this process has died. If a device's process
dies, its requests fail and nothing new is taken.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as all_of
from dataclasses import dataclass, field, fields, replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import Empty, SimpleQueue
from typing import Any

import torch

from tsdfm.errors import UserError
from tsdfm.serve.intake import Intake, Limits, Tally
from tsdfm.serve.jobs import Broken, Busy, Closing, Job, Late
from tsdfm.serve.scheduler import Scheduler
from tsdfm.serve.served import Served, usual_rows
from tsdfm.serve.worker import Worker

Load = Callable[[], Sequence[Served]]
STARTS = multiprocessing.get_context("forkserver")  # no process inherits a device, a thread or a socket of this one
BEAT, WARMING = 0.5, 0.02  # seconds after which a device tells how it is, and while it is being warmed
SWITCH = 0.0005  # seconds after which a thread lets the other go on: one makes passes or answers, one reads the line
PATIENCE = 10.0  # seconds for a process to end


class Packer(pickle.Pickler):
    """Small messages: a tensor is its bytes and no shared memory, which costs more than it saves here."""

    def reducer_override(self, value: Any) -> Any:
        """How a tensor is packed."""
        return (torch.from_numpy, (value.numpy(),)) if type(value) is torch.Tensor else NotImplemented


@dataclass
class Line:
    """One end of a line; any thread may speak, one listens."""

    end: Connection
    lock: threading.Lock = field(default_factory=threading.Lock)

    def say(self, *message: Any) -> None:
        """Send; where nobody is left to hear it, the listening thread finds out."""
        packed = io.BytesIO()
        Packer(packed, pickle.HIGHEST_PROTOCOL).dump(message)
        with self.lock, contextlib.suppress(OSError):
            self.end.send_bytes(packed.getbuffer())

    def hear(self) -> Any:
        """The next message; EOFError or OSError when the line is broken."""
        return pickle.loads(self.end.recv_bytes())


@dataclass(eq=False)
class Remoted(Job):
    """A job in a device's process: it tells the other end of each text that is done."""

    tell: Callable[..., None] = field(kw_only=True)

    def finish(self, place: int, tokens: list[int], passes: int) -> None:
        """A text is written; that the last one is, the job's end says."""
        if len(self.finished) + 1 < len(self.numbers):
            self.tell("row")
        super().finish(place, tokens, passes)


class Writing:
    """A device's process: what it does with messages. A thread speaks, so that no pass waits until it is heard."""

    def __init__(self, line: Line, scheduler: Scheduler) -> None:
        self.line, self.scheduler, self.jobs = line, scheduler, dict[int, Job]()
        self.unsaid = SimpleQueue[tuple[Any, ...]]()
        threading.Thread(target=self.speak, daemon=True).start()

    def speak(self) -> None:
        """Send what there is to say, as much of it at once as there is."""
        while True:
            said = [self.unsaid.get()]
            with contextlib.suppress(Empty):
                while True:
                    said.append(self.unsaid.get_nowait())
            self.line.say("all", said)

    def write(self, key: int, asked: dict[str, Any], watched: bool) -> None:
        """Have a job written."""
        tell = partial(self.tell, key)
        job = Remoted(**asked, on_pass=partial(tell, "seen") if watched else None, tell=tell)
        self.jobs[key] = job
        job.done.add_done_callback(lambda _: self.over(key, job))
        try:
            self.scheduler.take(job)
        except (Closing, Broken) as problem:
            job.fail(problem)

    def tell(self, key: int, kind: str, *about: Any) -> None:
        """Something about a job."""
        self.unsaid.put((kind, key, *about))

    def over(self, key: int, job: Job) -> None:
        """Tell how a job ended."""
        del self.jobs[key]
        problem = None if job.done.cancelled() else job.done.exception()
        if not isinstance(problem, UserError | Late | Broken | None):
            problem = RuntimeError(str(problem))
        self.tell(key, "over", None if problem or job.done.cancelled() else job.done.result(), problem)

    def cancel(self, key: int) -> None:
        """Nobody waits for a job."""
        job = self.jobs.get(key)  # it may be ending just now
        if job is not None:
            job.cancel()

    def listen(self) -> None:
        """Until the end."""
        scheduler, told, due = self.scheduler, None, 0.0
        with contextlib.suppress(EOFError, OSError):
            while True:
                about = scheduler.ready, dict(scheduler.exact), scheduler.broken and str(scheduler.broken)
                if about != told or time.monotonic() >= due:
                    told, due = about, time.monotonic() + BEAT
                    self.line.say("state", *about, scheduler.tally)
                if self.line.end.poll(BEAT if scheduler.ready or scheduler.broken else WARMING):
                    kind, *rest = self.line.hear()
                    if kind == "end":
                        return
                    getattr(self, kind)(*rest)


def device_process(end: Connection, load: Load, limits: Limits, worker: type[Worker]) -> None:
    """What a device's process does. Signals are for the process that started it, which then says what is to be done."""
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, signal.SIG_IGN)
    sys.setswitchinterval(SWITCH)
    line = Line(end)
    try:
        with ThreadPoolExecutor(1) as loader:  # OpenMP keeps a team of threads for each thread that had one: two of
            models = loader.submit(load).result()  # them are more than there are cores, and every product waits longer
        limits = replace(limits, rows=limits.rows or usual_rows(models))
    except UserError as problem:
        line.say("refused", problem)
        return
    line.say("serves", [served.without_weights() for served in models], limits.rows)
    Writing(line, Scheduler([models], replace(limits, queue=sys.maxsize), worker=worker)).listen()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # whatever pass is being made, nobody waits for it


@dataclass(eq=False)
class Device:
    """A device's process as this one sees it; `rows` are those it has not finished, by their jobs."""

    process: BaseProcess
    line: Line
    jobs: dict[int, Job] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=dict)
    ready: bool = False
    tally: Tally = field(default_factory=Tally)

    @property
    def load(self) -> int:
        """Rows that are written or wait here."""
        return sum(self.rows.values())


class Remote(Intake):
    """Takes requests for models that are written by processes, one for each of `loads`, which makes its models there.

    `limits.rows` may be 0: as many texts at once as the models want.
    """

    def __init__(self, loads: Sequence[Load], limits: Limits, worker: type[Worker] = Worker) -> None:
        self.lock, self.next = threading.Lock(), 0
        sys.setswitchinterval(min(SWITCH, sys.getswitchinterval()))
        self.devices = [start(load, limits, worker) for load in loads]
        try:
            told = [first_word(device) for device in self.devices]
        except BaseException:
            for device in self.devices:
                device.process.kill()
            raise
        models, rows = told[0]
        super().__init__({served.name: served for served in models}, replace(limits, rows=rows))
        self.ears = [threading.Thread(target=self.listen, args=(device,), daemon=True) for device in self.devices]
        for ear in self.ears:
            ear.start()
        atexit.register(self.close, wait=False)

    @property
    def ready(self) -> bool:
        """Are all models warm, and new requests taken?"""
        return not self.closing and all(device.ready for device in self.devices)

    @property
    def live(self) -> int:
        """Rows that are being written."""
        return sum(min(device.load, self.limits.rows) for device in self.devices)

    @property
    def queued(self) -> int:
        """Rows that wait for a place."""
        return sum(max(0, device.load - self.limits.rows) for device in self.devices)

    def take(self, job: Job) -> None:
        """Give a job to the device with the fewest rows."""
        rows = len(job.asked.numbers)
        with self.lock:
            if self.closing:
                raise self.closed()
            device = min(self.devices, key=lambda device: device.load)
            if self.queued + min(rows, max(0, device.load + rows - self.limits.rows)) > self.limits.queue:
                jobs = [job for device in self.devices for job in device.jobs.values()]
                raise Busy(self.pause(sum(job.steps * len(job.asked.numbers) for job in jobs), len(self.devices)))
            self.next += 1
            key, device.jobs[self.next], device.rows[self.next] = self.next, job, rows
        asked = {name: getattr(job, name) for name in ("ask", "asked", "steps", "dials", "deadline")}
        device.line.say("write", key, asked, job.on_pass is not None)
        job.done.add_done_callback(lambda done: device.line.say("cancel", key) if done.cancelled() else None)

    def listen(self, device: Device) -> None:
        """Hear what a device says, until it says no more."""
        try:
            while True:
                self.heard(device, *device.line.hear())
        except (EOFError, OSError):
            if not self.closing or device.jobs:
                device.process.join(PATIENCE)
                self.break_down(f"a device's process has ended with exit code {device.process.exitcode}")

    def heard(self, device: Device, kind: str, *about: Any) -> None:
        """Do what a message is about."""
        getattr(self, f"on_{kind}")(device, *about)

    def on_all(self, device: Device, messages: Sequence[tuple[Any, ...]]) -> None:
        """Several messages at once."""
        for message in messages:
            self.heard(device, *message)

    def on_state(self, device: Device, ready: bool, exact: dict[str, bool], broken: str | None, tally: Tally) -> None:
        """How a device is."""
        device.ready, device.tally = ready, tally
        names = [field.name for field in fields(Tally)]
        self.tally = Tally(**{name: sum(getattr(each.tally, name) for each in self.devices) for name in names})
        self.exact = exact
        if broken:
            self.break_down(broken)

    def on_seen(self, device: Device, key: int, seen: Any) -> None:
        """A pass of a text that is watched."""
        job = device.jobs.get(key)
        if job is not None and job.on_pass is not None and not job.done.done():
            job.on_pass(seen)

    def on_row(self, device: Device, key: int) -> None:
        """A text of a job is written; the job may have ended meanwhile."""
        with self.lock:
            if key in device.rows:
                device.rows[key] -= 1

    def on_over(self, device: Device, key: int, texts: Any, problem: Exception | None) -> None:
        """A job has ended."""
        with self.lock:
            job, _ = device.jobs.pop(key, None), device.rows.pop(key)
        if job is not None and problem is not None:
            job.fail(problem)
        elif job is not None and texts is not None:
            job.give(texts)

    def break_down(self, problem: str) -> None:
        """A device cannot go on: nothing new is taken, and nobody waits for what will not come."""
        with self.lock:
            self.broken, self.closing = RuntimeError(problem), True
            jobs = [job for device in self.devices for job in device.jobs.values()]
        for job in jobs:
            job.fail(self.closed())

    def close(self, *, wait: bool = True) -> None:
        """Take nothing new, write what is there to its end, and stop; without `wait`, give it up."""
        atexit.unregister(self.close)
        with self.lock:
            self.closing = True
            jobs = [job for device in self.devices for job in device.jobs.values()]
        for job in jobs if not wait else ():
            job.cancel()
        all_of([job.done for job in jobs])
        for device in self.devices:
            device.jobs.clear()
            device.line.say("end")
        for device in self.devices:
            device.process.join(PATIENCE)
            device.process.kill()


def start(load: Load, limits: Limits, worker: type[Worker]) -> Device:
    """A device's process."""
    mine, theirs = STARTS.Pipe()
    process = STARTS.Process(target=device_process, args=(theirs, load, limits, worker))
    process.start()
    theirs.close()  # so that the line breaks when the process ends
    return Device(process, Line(mine))


def first_word(device: Device) -> tuple[Sequence[Served], int]:
    """The models that a device serves, and how many texts it writes at once; or what it refuses."""
    try:
        kind, *told = device.line.hear()
    except (EOFError, OSError):
        device.process.join(PATIENCE)
        raise RuntimeError(f"a device's process has ended with exit code {device.process.exitcode}") from None
    if kind == "refused":
        raise told[0]
    return told[0], told[1]
