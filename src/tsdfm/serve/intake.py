"""Where requests come in: each is checked and becomes a job, whoever writes it then.

`scheduler.Scheduler` writes jobs by threads of this process, `remote.Remote` by processes of their own.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from tsdfm.errors import UserError
from tsdfm.flow import shape_logits, steps_of
from tsdfm.flow.noise import salt_of
from tsdfm.methods import bound_of
from tsdfm.samples.given import Asked, as_prompts, read_asked
from tsdfm.serve.jobs import Ask, Broken, Closing, Job, Late, Refused, Seen, blaming
from tsdfm.serve.served import Served

NOTHING = torch.zeros(1, 1)
SLOW = 3e-4  # seconds of its own that a scheduler should not take in a pass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What is taken: `rows` texts at once for each device, `queue` rows waiting, `deadline` seconds for a request."""

    rows: int = 8
    queue: int = 256
    deadline: float = 120.0


@dataclass
class Tally:
    """What has been done: `busy` are the seconds of passes, `own` those of them in which no network was at work.

    Of the `turns`, in each of which every live row of a model takes a pass, `joined` had rows that had just come, with
    `own_joined` seconds of those, and `slow` had more than `SLOW` seconds of them.
    """

    passes: int = 0
    rows: int = 0
    texts: int = 0
    tokens: int = 0
    busy: float = 0.0
    own: float = 0.0
    turns: int = 0
    joined: int = 0
    own_joined: float = 0.0
    slow: int = 0

    def turn(self, busy: float, own: float, joined: bool) -> None:
        """One turn more."""
        self.busy, self.own, self.turns = self.busy + busy, self.own + own, self.turns + 1
        self.joined, self.own_joined = self.joined + joined, self.own_joined + own * joined
        self.slow += own > SLOW


class Intake(ABC):
    """Takes requests for `models`, by their names."""

    def __init__(
        self, models: Mapping[str, Served], limits: Limits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.models, self.limits, self.clock, self.tally = models, limits, clock, Tally()
        self.broken: BaseException | None = None
        self.exact = dict[str, bool]()  # has a model the same bits alone or in a crowd?
        self.closing = False

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Are all models warm, and new requests taken?"""

    @property
    @abstractmethod
    def live(self) -> int:
        """Rows that are being written."""

    @property
    @abstractmethod
    def queued(self) -> int:
        """Rows that wait for a place."""

    @abstractmethod
    def take(self, job: Job) -> None:
        """Have a job written. Raises `Busy` or `Closing`."""

    @abstractmethod
    def close(self, *, wait: bool = True) -> None:
        """Take nothing new, write what is there to its end, and stop; without `wait`, give it up."""

    def submit(self, ask: Ask, on_pass: Callable[[Seen], None] | None = None) -> Job:
        """Put a request into the queue. Raises `UserError` for what cannot be asked, `Busy`, or `Closing`."""
        job = self.job(ask, on_pass)
        self.take(job)
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
        with blaming("seed"):
            salt_of(ask.seed, 0)
        with blaming("temperature"):
            shape_logits(NOTHING, temperature)
        with blaming("top_p"):
            shape_logits(NOTHING, top_p=ask.top_p)
        with blaming("jump"):
            jump = served.jump(ask.jump, "blind")
        with blaming("steps"):
            steps_of(jump, steps)
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
            asked = read_asked(
                served.model.tokenizer,
                spec.length,
                spec.anchor,
                ask.n,
                prefixes=ask.prefixes,
                infills=ask.infills,
                most=most,
            )
            if asked.texts < len(asked.numbers) and bound_of(spec) is None:
                raise UserError(f"a model of {spec.method} has no bound to choose a gap's length by: give one length")
        return asked

    def closed(self) -> Closing | Broken:
        """Why nothing new is taken."""
        broken = self.broken is not None
        return Broken(f"the server has broken down: {self.broken}") if broken else Closing("the server is going down")

    def late(self) -> Late:
        """What is said of a request whose time is over."""
        return Late(f"the request was not done within {self.limits.deadline:g} s")

    def pause(self, passes: float, devices: int) -> int:
        """Whole seconds that so many passes of rows take on so many devices, by what passes have taken so far.

        No more than the deadline, which ends whatever is before a request in the queue.
        """
        pace = self.tally.busy / self.tally.rows if self.tally.rows else 0.0
        return max(1, math.ceil(min(passes * pace / devices, self.limits.deadline)))
