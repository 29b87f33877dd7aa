"""A worker: one device with its models, and a thread that makes passes while there are rows."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

from tsdfm.errors import UserError
from tsdfm.samples.lengths import TIMES
from tsdfm.serve.jobs import Late, Place, Seen
from tsdfm.serve.row import Row, fetched, groups
from tsdfm.serve.served import Served

if TYPE_CHECKING:
    from tsdfm.serve.scheduler import Scheduler


class Worker:
    """A device with its models: a thread that makes passes while there are rows."""

    def __init__(self, scheduler: Scheduler, models: Sequence[Served]) -> None:
        self.scheduler, self.models = scheduler, {served.name: served for served in models}
        self.live, self.turn, self.warm = list[Place](), 0, False
        self.thread = threading.Thread(target=self.run, name=f"tsdfm-{models[0].device}", daemon=True)
        self.thread.start()

    def run(self) -> None:
        """Warm the models, then make passes until the scheduler is closed and nothing is left."""
        device = next(iter(self.models.values())).device
        try:
            if device.type == "cuda":
                torch.cuda.set_device(device)
            for served in self.models.values():
                served.warm()
                self.scheduler.exact[served.name] = served.steady()
            self.warm = True
            while (served := self.next_model()) is not None:  # type: ignore[assignment]
                self.turn_of(served)
        except BaseException as problem:
            traceback.print_exc()
            self.scheduler.break_down(problem)

    def turn_of(self, served: Served) -> None:
        """A pass of a model's rows, and what it took."""
        began, tally = time.perf_counter(), self.scheduler.tally
        mine = [place for place in self.live if place.job.ask.model == served.name]
        inside = self.one_pass(served, mine)
        spent = time.perf_counter() - began
        with self.scheduler.changed:
            tally.passes, tally.rows = tally.passes + 1, tally.rows + len(mine)
            tally.busy, tally.own = tally.busy + spent, tally.own + spent - inside

    def next_model(self) -> Served | None:
        """Whose turn it is, once there are rows; none when it is over. Rows that nobody waits for go before."""
        scheduler = self.scheduler
        with scheduler.changed:
            while True:
                self.sort_out()
                self.admit()
                if self.live:
                    names = [n for n in self.models if any(place.job.ask.model == n for place in self.live)]
                    self.turn += 1
                    return self.models[names[self.turn % len(names)]]
                if scheduler.closing:
                    return None
                scheduler.changed.wait()

    def admit(self) -> None:
        """Those who wait come in while there is room."""
        waiting = self.scheduler.waiting
        while waiting and len(self.live) < self.scheduler.limits.rows:
            self.live.append(waiting.popleft())

    def sort_out(self) -> None:
        """Rows of jobs that have ended, or whose time is over, leave."""
        now, waiting = self.scheduler.clock(), self.scheduler.waiting
        for place in (*self.live, *waiting):
            if place.job.deadline < now:
                place.job.fail(Late(f"the request was not done within {self.scheduler.limits.deadline:g} s"))
        self.live = [place for place in self.live if not place.job.done.done()]
        if any(place.job.done.done() for place in waiting):
            still = [place for place in waiting if not place.job.done.done()]
            waiting.clear()
            waiting.extend(still)

    def one_pass(self, served: Served, places: Sequence[Place]) -> float:
        """A pass of all rows of a model; the seconds in which its network was asked and waited for."""
        inside = 0.0
        for place in places:
            if place.row is None:
                self.guarded([place], partial(self.begin, served, place))
        rows = {place.row: place for place in places if place.row is not None}
        for some, shape in groups(list(rows), served.shapes):
            began = time.perf_counter()
            self.guarded([rows[row] for row in some], partial(served.step, some, shape))
            inside += time.perf_counter() - began
        began = time.perf_counter()
        known = fetched([row for row, place in rows.items() if row.written or place.job.on_pass is not None])
        inside += time.perf_counter() - began
        for row, place in rows.items():
            self.guarded([place], partial(self.after, served, place, row, *known.get(row, (None, False))))
        return inside

    def begin(self, served: Served, place: Place) -> None:
        """A row for a place that has just come."""
        job, given = place.job, place.given(served.device)
        place.row = row = served.row(
            place.number, job.ask.seed, job.steps, job.dials, job.ask.jump, job.ask.guide, given
        )
        if job.on_pass is not None:
            self.show(place, row, row.x[0].tolist())

    def after(self, served: Served, place: Place, row: Row, tokens: list[int] | None, bad: bool) -> None:
        """What a pass has made is told; a finished row leaves. `tokens` are there of a row that is looked at."""
        job = place.job
        if job.done.done() or tokens is None:
            return
        self.show(place, row, tokens)
        if not row.written:
            return
        if bad:
            raise RuntimeError(f"the model {served.name} gave logits that are not numbers: is the checkpoint sound?")
        passes, given = row.passes, place.given(served.device)
        if job.chosen and given is not None:
            job.scores[place.index] = served.score(given, place.number, row.x, job.ask.seed, row.points[1])
            passes += TIMES
        self.live.remove(place)
        with self.scheduler.changed:
            self.scheduler.tally.texts += 1
            self.scheduler.tally.tokens += row.x.numel()
        job.finish(place.index, tokens, passes)

    def show(self, place: Place, row: Row, now: list[int]) -> None:
        """Tell a watcher, if there is one, what has changed."""
        if place.job.on_pass is None:
            return
        before = row.shown or [-1] * len(now)
        changes = [(position, token) for position, token in enumerate(now) if token != before[position]]
        row.shown = now
        place.job.on_pass(Seen(place.index, row.passes, row.of, row.t, changes))

    def guarded(self, places: Sequence[Place], work: Callable[[], None]) -> None:
        """`work` for these rows; what goes wrong ends their jobs and nobody else's."""
        try:
            work()
        except Exception as problem:
            if not isinstance(problem, UserError):
                traceback.print_exc()
            for place in places:
                place.job.fail(problem)
