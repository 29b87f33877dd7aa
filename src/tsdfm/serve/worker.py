"""A worker: one device with its models, and a thread that makes passes while there are rows."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar

import torch

from tsdfm.errors import UserError
from tsdfm.samples.lengths import TIMES
from tsdfm.serve.jobs import Place, Seen
from tsdfm.serve.row import Fetch, Row, groups, marked, reached
from tsdfm.serve.served import Served, Start

if TYPE_CHECKING:
    from tsdfm.serve.scheduler import Scheduler

Result = TypeVar("Result")
NAP = 5e-5  # seconds between two looks at a device that is making a pass


@dataclass(frozen=True)
class Look:
    """A row as it was after a pass: it may have gone on when its tokens arrive."""

    served: Served
    place: Place
    row: Row
    passes: int
    t: float
    written: bool


class Batch(NamedTuple):
    """Rows that share a pass, where they belong, and the shape that they are filled up to."""

    rows: list[Row]
    places: list[Place]
    shape: int


class Worker:
    """A device with its models: a thread that makes passes while there are rows.

    Where the device works by itself (`ahead`, a GPU), nothing waits for a pass that need not: while it is made, the
    texts that the pass before has finished are handed out, and those who wait come in.
    """

    works_alone: ClassVar[tuple[str, ...]] = ("cuda",)

    def __init__(self, scheduler: Scheduler, models: Sequence[Served]) -> None:
        self.scheduler, self.models = scheduler, {served.name: served for served in models}
        self.live, self.turn, self.warm = list[Place](), 0, False
        self.device = models[0].device
        self.ahead, self.mark, self.began = self.device.type in self.works_alone, None, 0.0
        self.leaving = list[tuple[list[Look], Fetch]]()
        self.thread = threading.Thread(target=self.run, name=f"tsdfm-{self.device}", daemon=True)
        self.thread.start()

    @property
    def places(self) -> list[Place]:
        """Rows that are not handed out yet."""
        return [*self.live, *(look.place for looks, _ in self.leaving for look in looks)]

    def run(self) -> None:
        """Warm the models, then make passes until the scheduler is closed and nothing is left."""
        try:
            if self.device.type == "cuda":
                torch.cuda.set_device(self.device)
            for served in self.models.values():
                served.warm()
                self.scheduler.exact[served.name] = served.steady()
            self.warm = True
            while (served := self.next_model()) is not None:  # type: ignore[assignment]
                self.turn_of(served)
        except BaseException as problem:
            traceback.print_exc()
            self.scheduler.break_down(problem)

    def next_model(self) -> Served | None:
        """Whose turn it is, once there are rows; none when it is over. Rows that nobody waits for go before."""
        scheduler = self.scheduler
        while True:
            with scheduler.changed:
                self.began = time.perf_counter()
                self.come_and_go()
                if self.live:
                    names = [n for n in self.models if any(place.job.ask.model == n for place in self.live)]
                    self.turn += 1
                    return self.models[names[self.turn % len(names)]]
                if not self.leaving:
                    if scheduler.closing:
                        return None
                    scheduler.changed.wait()
            self.hand_out(self.left())  # nobody else keeps the device busy

    def come_and_go(self) -> None:
        """Rows of jobs that have ended, or whose time is over, leave; those who wait come in while there is room."""
        now, waiting = self.scheduler.clock(), self.scheduler.waiting
        for place in [place for place in (*self.live, *waiting) if place.job.deadline < now]:
            place.job.fail(self.scheduler.late())
        self.live = [place for place in self.live if not place.job.ended]
        still = [place for place in waiting if not place.job.ended]
        if len(still) < len(waiting):
            waiting.clear()
            waiting.extend(still)
        self.admit()

    def admit(self) -> None:
        """Those who wait come in while there is room."""
        waiting = self.scheduler.waiting
        while waiting and len(self.live) < self.scheduler.limits.rows:
            self.live.append(waiting.popleft())

    def turn_of(self, served: Served) -> None:
        """A pass of a model's rows, and what it took."""
        tally, hidden = self.scheduler.tally, 0.0
        batches, came = self.rows_of(served)
        room = self.scheduler.limits.rows
        while len(self.live) < room and not reached(self.mark):  # who comes during the pass before begins meanwhile
            with self.scheduler.changed:
                before = len(self.live)
                self.admit()
            if len(self.live) > before:
                batches, more = self.rows_of(served)
                came += more
            else:
                time.sleep(NAP)
            hidden = time.perf_counter() - self.began
        rows = [row for batch in batches for row in batch.rows]
        begun = [row.passes for row in rows]
        if not reached(self.mark):
            hidden = time.perf_counter() - self.began
        inside = self.one_pass(served, batches, hidden)
        spent = time.perf_counter() - self.began
        with self.scheduler.changed:
            made = [row.passes - before for row, before in zip(rows, begun, strict=True)]
            tally.passes, tally.rows = tally.passes + max(made, default=0), tally.rows + sum(made)
            tally.turn(spent, spent - inside, came > 0)

    def rows_of(self, served: Served) -> tuple[list[Batch], int]:
        """The live rows of a model, laid together for a pass, and how many of them have just come, which begin."""
        mine = [place for place in self.live if place.job.ask.model == served.name]
        new = [place for place in mine if place.row is None]
        if new:
            self.begin(served, new)
        rows = {place.row: place for place in mine if place.row is not None}
        batches = [Batch(some, [rows[row] for row in some], shape) for some, shape in groups(list(rows), served.shapes)]
        for batch in batches if self.ahead else ():
            self.guarded(batch.places, partial(served.gather, batch.rows, batch.shape))
        return batches, len(new)

    def one_pass(self, served: Served, batches: Sequence[Batch], inside: float = 0.0) -> float:
        """A pass of all rows of a model; the turn's seconds in which its network was asked and waited for, `inside` of
        them before."""
        alone = len(self.live) == 1 and not self.scheduler.waiting
        alone = alone and all(place.job.on_pass is None for batch in batches for place in batch.places)
        for batch in batches:
            step = partial(served.step, batch.rows, batch.shape, alone=alone)
            inside += self.guarded(batch.places, step) or 0.0
            if not reached(self.mark):  # the pass before is still being made: nothing has kept the device waiting
                inside = time.perf_counter() - self.began
        launched, before = time.perf_counter(), self.left()
        pairs = (pair for batch in batches for pair in zip(batch.rows, batch.places, strict=True))
        looked = [(row, place) for row, place in pairs if row.written or place.job.on_pass is not None]
        looks = [Look(served, p, r, r.passes, r.t, r.written) for r, p in looked if not p.job.ended]
        if looks:
            self.leaving.append((looks, Fetch([look.row for look in looks])))
        self.live = [place for place in self.live if place.row is None or not place.row.written]
        self.mark = marked(self.device) if self.ahead else None
        if not self.ahead or not (self.live or self.scheduler.waiting):  # nobody else keeps the device busy
            before += self.left()
        waited = self.hand_out(before)
        return inside + (waited if reached(self.mark) else time.perf_counter() - launched)

    def left(self) -> list[tuple[list[Look], Fetch]]:
        """What is on its way from the device; it is this one's to hand out."""
        found, self.leaving = self.leaving, []
        return found

    def hand_out(self, fetched: Sequence[tuple[list[Look], Fetch]]) -> float:
        """Tell of rows what has been fetched of them; the seconds that the device was waited for."""
        began = time.perf_counter()
        known = [(look, *found) for looks, fetch in fetched for look, found in zip(looks, fetch.get(), strict=True)]
        waited = time.perf_counter() - began
        for look, tokens, bad in known:
            self.guarded([look.place], partial(self.after, look, tokens, bad))
        return waited

    def begin(self, served: Served, places: Sequence[Place]) -> None:
        """Rows for places that have just come, together; where one of them cannot begin, one by one."""
        try:
            rows = served.begin([start_of(place) for place in places])
        except Exception as problem:
            if len(places) == 1:
                self.failed(places, problem)
            for place in places if len(places) > 1 else ():
                self.begin(served, [place])
            return
        for place, row in zip(places, rows, strict=True):
            place.row = row
            if place.job.on_pass is not None:
                self.guarded([place], partial(self.show, Look(served, place, row, 0, row.t, False), row.x[0].tolist()))

    def after(self, look: Look, tokens: list[int], bad: bool) -> None:
        """What a pass has made is told; a finished row is handed out."""
        served, place, row, job = look.served, look.place, look.row, look.place.job
        if job.ended:
            return
        self.show(look, tokens)
        if not look.written:
            return
        if bad:
            raise RuntimeError(f"the model {served.name} gave logits that are not numbers: is the checkpoint sound?")
        passes, given = look.passes, place.given(served.device) if job.chosen else None
        if given is not None:
            job.scores[place.index] = served.score(given, place.number, row.x, job.ask.seed, row.steps[0][1])
            passes += TIMES
        with self.scheduler.changed:
            self.scheduler.tally.texts += 1
            self.scheduler.tally.tokens += row.x.numel()
        job.finish(place.index, tokens, passes)

    def show(self, look: Look, now: list[int]) -> None:
        """Tell a watcher, if there is one, what has changed."""
        place, row = look.place, look.row
        if place.job.on_pass is None:
            return
        before = row.shown or [-1] * len(now)
        changes = [(position, token) for position, token in enumerate(now) if token != before[position]]
        row.shown = now
        place.job.on_pass(Seen(place.index, look.passes, row.of, look.t, changes))

    def guarded(self, places: Sequence[Place], work: Callable[[], Result]) -> Result | None:
        """`work` for these rows; what goes wrong ends their jobs and nobody else's."""
        try:
            return work()
        except Exception as problem:
            self.failed(places, problem)
            return None

    def failed(self, places: Sequence[Place], problem: Exception) -> None:
        """These rows' jobs end by a problem, which is shown where it is not the user's."""
        if not isinstance(problem, UserError):
            traceback.print_exception(problem)
        for place in places:
            place.job.fail(problem)


def start_of(place: Place) -> Start:
    """What the text of a place begins from."""
    job, given = place.job, place.given(torch.device("cpu"))
    return Start(place.number, job.ask.seed, job.steps, job.dials, job.ask.jump, job.ask.guide, given)
