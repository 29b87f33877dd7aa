"""The one training loop. A stage brings a `Task`; everything else about training lives here.

    with join(loop.device) as world:
        loader = Loader(rows, loop.batch, loop.seed, world.rank, world.size)
        fit(task, lambda step: prefetch(loader, step, world.device), world=world, loop=loop, optim=optim,
            out=out, record=Record(stage="teacher", settings=settings, inputs={"tokens": tokens}), resume=resume)

Step n trains on `feed(n)`'s batch and its noise, its dropout is seeded from (seed, n, rank), its learning rate is a
function of n: so weights, average, moments and n are all it takes to go on as if nothing had happened.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from functools import partial
from pathlib import Path
from signal import SIGTERM
from typing import Any

import torch
from torch import Tensor

from tsdfm import terminal
from tsdfm.engine.distributed import Agreement, Processes
from tsdfm.engine.learner import Learner
from tsdfm.engine.log import Log, Stopwatch, outcome, spoken
from tsdfm.engine.meters import Meters
from tsdfm.engine.optim import lr_at
from tsdfm.engine.settings import LoopSettings, OptimSettings
from tsdfm.engine.signals import Signals, Stopped
from tsdfm.engine.task import Feed, Record, Task
from tsdfm.errors import UserError
from tsdfm.settings import defaults, flat, nearest, to_dict
from tsdfm.store.checkpoint import Store, read_state
from tsdfm.store.files import read_json, sweep, write_json
from tsdfm.store.hashes import check_inputs, remember
from tsdfm.store.kinds import RunState
from tsdfm.store.lock import Lock, held
from tsdfm.store.manifest import NAME as MANIFEST
from tsdfm.store.manifest import check_place, make_manifest, read_manifest


def fit(
    task: Task,
    feed: Feed,
    *,
    world: Processes,
    loop: LoopSettings,
    optim: OptimSettings,
    out: Path,
    record: Record,
    resume: bool = False,
    begin: Callable[[], None] | None = None,
    beside: Callable[[], object] | None = None,
) -> Path:
    """Train `task.model` for `loop.steps` steps and return the folder of the last checkpoint.

    Args:
        task: the objective and the network it trains.
        feed: `feed(step)` gives this process's batches from that step on.
        world: the processes that train together, from `join`.
        loop, optim: how long and how.
        out: the run's folder.
        record: what the manifests say.
        begin: what a new run does first, once its folder is its own: to set the weights of step 0, say.
        beside: writes what a new run has beside its checkpoints, once nothing refuses it any more.

    `resume` goes on from the newest checkpoint in `out` (from the start if there is none yet). Without it, a folder
    that has checkpoints is refused, and one that another process holds in any case. SIGINT and SIGTERM finish the step,
    save and raise `Stopped` (code 130 or 143).
    """
    check_batch(loop, world)
    store = Store(out, loop.keep)
    with holding(out, world) as lock:
        world.on_main(lambda: sweep_run(store))
        start = world.same(world.on_main(lambda: opening(store, resume, record.stage)) or 0)
        checked = world.on_main(lambda: check_inputs(record.inputs, out)) or {}
        if begin is not None and not start:
            begin()
        manifest = world.on_main(lambda: describe_run(record)) or {}
        run = TrainingRun(task, world, loop, optim, store, manifest, record.identity)
        run.lock, run.then = lock, record.then
        run.again = "the same command" if resume else "the same command with --resume"
        run.usual = defaults(type(record.settings)) if is_dataclass(record.settings) else {}
        run.usual |= {name: record.identity[name] for name in ("method",) if name in record.identity}  # a later word
        if start:
            run.restore(store.at(start))
        run.check_best()
        world.on_main(lambda: remember(out, checked))
        if beside is not None and not start:
            world.on_main(beside)
        return run.train(feed)


@contextlib.contextmanager
def holding(out: Path, world: Processes) -> Iterator[Lock | None]:
    """The run's folder is held by process 0, for all of them."""
    with contextlib.ExitStack() as stack:
        yield world.on_main(lambda: stack.enter_context(held(out)))


def describe_run(record: Record) -> dict[str, Any]:
    """The manifest of a run."""
    return make_manifest(
        stage=record.stage, settings=record.settings, inputs=record.inputs, parent=record.parent, extra=record.extra
    )


def check_batch(loop: LoopSettings, world: Processes) -> None:
    """Every process takes the same number of rows, in whole micro-batches."""
    if loop.batch % world.size:
        raise UserError(f"batch = {loop.batch} cannot be shared equally by {world.size} processes")
    rows = loop.batch // world.size
    if loop.micro is not None and loop.micro < rows and rows % loop.micro:
        raise UserError(f"a step has {rows} rows on each process, which micro = {loop.micro} does not divide")


def opening(store: Store, resume: bool, stage: str) -> int:
    """The step to start from."""
    newest = store.newest()
    if newest is None:
        check_place(store.folder.parent, stage)
        return 0
    if not resume:
        raise UserError(f"{store.folder.parent} already has checkpoints: use --resume to go on, or another --out")
    return store.steps()[-1]


def sweep_run(store: Store) -> None:
    """Delete what a killed process left unfinished in a run's folder."""
    store.sweep()
    for folder in (store.folder.parent, store.folder):
        sweep(folder)


def planned_steps(checkpoint: Path) -> int | None:
    """How long the run was to be that wrote a checkpoint, if it says so."""
    found: Any = read_manifest(checkpoint).get("settings")
    for name in ("loop", "steps"):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, int) else None


@dataclass
class Progress:
    """What a checkpoint remembers besides tensors."""

    step: int = 0
    tokens: int = 0
    best: dict[str, Any] | None = None


class TrainingRun:
    """One training run: the learner, its meters, and the folder they are written to."""

    def __init__(
        self,
        task: Task,
        world: Processes,
        loop: LoopSettings,
        optim: OptimSettings,
        store: Store,
        manifest: dict[str, Any],
        fixed: Mapping[str, Any],
    ) -> None:
        self.world, self.loop, self.optim, self.store = world, loop, optim, store
        self.manifest, self.fixed = manifest, dict(fixed)
        self.learner = Learner(task, world, loop, optim)
        self.meters = Meters(world)
        self.done = Progress()
        self._reported = (0, 0)
        self.usual: dict[str, Any] = {}
        self.lock: Lock | None = None
        self.again = "the same command with --resume"
        self.then: tuple[str | Path, ...] = ()
        self._bare = False  # there is nothing to evaluate

    def identity(self) -> dict[str, Any]:
        """What must not change between a checkpoint and the run that goes on from it.

        Steps, precision, processes, micro-batches and how often to log or save may.
        """
        inputs = {name: found["sha256"] for name, found in self.manifest.get("inputs", {}).items()}
        dials = {"batch": self.loop.batch, "seed": self.loop.seed, "optim": to_dict(self.optim)}
        if self.optim.rule == "adamw":
            del dials["optim"]["momentum"]  # Muon's
        return {"stage": self.manifest.get("stage"), **dials, "inputs": inputs, **self.fixed}

    def restore(self, checkpoint: Path) -> None:
        """Go on from a checkpoint, if it belongs to this run."""
        state = self.world.same(self.world.on_main(lambda: self._check(checkpoint)))
        self.learner.restore(checkpoint)
        self.meters.load(state["meters"])
        self.done = Progress(state["step"], state["tokens"], state["best"])
        self.world.on_main(self._settle)  # a kill may have come between the checkpoint and this
        self._reported = (self.done.step, self.done.tokens)

    def check_best(self) -> None:
        """Refuse a metric for the best checkpoint that no evaluation has. The usual one may be missing: then none is
        the best. To know another, it takes an evaluation."""
        best, usual = self.loop.best, defaults(type(self.loop))["best"]
        if best != usual and (values := self.learner.evaluate(self.done.step)) and best not in values:
            raise UserError(f"loop.best: no metric of the evaluation is called {best!r}{nearest(best, values)}")

    def _check(self, checkpoint: Path) -> dict[str, Any]:
        state = read_state(checkpoint, RunState)
        done, asked, planned = state["step"], self.loop.steps, planned_steps(checkpoint)
        if done > asked or (done == asked and planned not in (None, asked)):
            of = f" of {planned}" if planned else ""
            raise UserError(
                f"{self.store.folder.parent} has {done} steps{of} already, and loop.steps is {asked}: there is nothing "
                "left to train; give more steps, or another --out"
            )
        now, usual = flat(self.identity()), flat({"optim": to_dict(OptimSettings()), **self.usual})
        # what a checkpoint had before there was a dial for it
        then = {name: value for name, value in usual.items() if name in now} | flat(state["identity"])
        for name in sorted(then.keys() | now.keys(), key=lambda name: (None in (then.get(name), now.get(name)), name)):
            if f"inputs.{name}" not in then and then.get(name) != now.get(name):  # of inputs the hashes count
                raise UserError(
                    f"cannot resume {checkpoint}: {name} was {then.get(name)} and is now {now.get(name)}; "
                    "use what it was, or start a new run in another folder"
                )
        return state

    def train(self, feed: Feed) -> Path:
        """Run the steps that are left."""
        done, agreement, asked = self.done, Agreement(self.world), False
        with contextlib.ExitStack() as stack:
            self._open()
            stack.callback(self.log.close)
            batches = feed(done.step)
            stack.callback(close, batches)
            signals = stack.enter_context(Signals())
            first = done.step
            while done.step < self.loop.steps:
                with self._compiling(done.step == first):
                    self._step(batches)
                asked = agreement.any(signals.number is not None)
                stop = asked and done.step < self.loop.steps
                self._look(stop)
                if stop:
                    agreement.close()
                    self.log.say(f"stopped after step {done.step}, saved; {self.again} goes on")
                    raise Stopped(128 + (signals.number or SIGTERM))
            agreement.close()
        last = self._finish()
        if asked:  # what would come after this run does not
            raise Stopped(128 + (signals.number or SIGTERM))
        return last

    def _open(self) -> None:
        """Say what is starting, in the folder and to the user."""
        out, step, steps = self.store.folder.parent, self.done.step, self.loop.steps
        self.world.on_main(lambda: self._describe({"finished": False}))
        log = partial(Log, out, step=step, steps=steps, tensorboard=self.loop.tensorboard, wandb=self.loop.wandb)
        self.log = self.world.on_main(lambda: log(main=True)) or log(main=False)
        if self.optim.warmup >= steps:
            self.log.say(
                f"note: the warm-up of {self.optim.warmup} steps is all of the run of {steps}: lower optim.warmup"
            )
        if step:
            self.log.say(f"resuming at step {step} of {steps}" if step < steps else f"step {step} of {steps} is done")
        self.watch = Stopwatch()

    def _describe(self, result: Mapping[str, Any]) -> None:
        """Write the run's manifest, unless it is that of this run and tells of its end."""
        path, steps = self.store.folder.parent / MANIFEST, self.loop.steps
        before = read_json(path) if path.is_file() and self.done.step == steps else {}
        last = self.store.at(steps).relative_to(path.parent).as_posix()
        if not before.get("finished") or before.get("checkpoint") != last:
            write_json(path, {**self.manifest, **result})

    def _compiling(self, first: bool) -> contextlib.AbstractContextManager[None]:
        """Say what the first step waits for."""
        return self.log.doing("compiling…") if first and self.loop.compile else contextlib.nullcontext()

    def _step(self, batches: Iterator[Any]) -> None:
        batch = next(batches, None)
        if batch is None:
            raise UserError(f"the data ended after {self.done.step} steps of {self.loop.steps}")
        measured, bad = self.learner.update(batch, self.done.step)
        self.meters.add(measured, bad)
        self.done.step += 1
        self.done.tokens += batch.tokens.numel() * self.world.size
        self.log.advance(self.done.step)

    def _look(self, stop: bool) -> None:
        """After a step: report, evaluate and save, each where it is due."""
        step, loop = self.done.step, self.loop
        last = step >= loop.steps
        if last or due(step, loop.log_every):
            self._report()
        with self.watch.left_out():
            improved = (last or due(step, loop.eval_every)) and self._evaluate()
            if last or stop or improved or due(step, loop.save_every):
                self._save()

    def _report(self) -> None:
        done, newest = self.done, self.store.newest()
        self.meters.guard(self.loop.max_bad, f"the last checkpoint is {newest}" if newest else "no checkpoint yet")
        means = summary(self.learner.task, self.meters.report())
        seconds = self.watch.lap()
        steps, tokens = done.step - self._reported[0], done.tokens - self._reported[1]
        self._reported = (done.step, done.tokens)
        speed = {"tokens": done.tokens, "tokens_per_s": tokens / seconds, "seconds": seconds}
        if self.world.device.type == "cuda":
            speed["peak_gib"] = torch.cuda.max_memory_reserved(self.world.device) / 2**30
        values = {**means, "lr": lr_at(done.step - 1, self.loop.steps, self.optim), **speed}
        self.log.write(done.step, "train", values)
        self.log.report(done.step, values, seconds / max(1, steps))

    def _evaluate(self) -> bool:
        """Evaluate, and say whether this is the best so far; of equally good ones the later is."""
        with contextlib.nullcontext() if self._bare else self.log.doing("evaluating…"):
            values = self.learner.evaluate(self.done.step)
        if not values:
            if not self._bare:
                self.log.detail("there is nothing to evaluate")
            self._bare = True
            return False
        self.log.write(self.done.step, "eval", values)
        self.log.detail(f"step {self.done.step}  {spoken(values)}")
        value = values.get(self.loop.best, math.nan)
        if not math.isfinite(value) or (self.done.best is not None and value > self.done.best["value"]):
            return False
        self.done.best = {"step": self.done.step, "metric": self.loop.best, "value": value}
        return True

    def _save(self) -> None:
        """Write a checkpoint; process 0 does, with tensors gathered from all."""
        meters, parts = self.meters.state(), self.learner.whole()
        state = {"tokens": self.done.tokens, "best": self.done.best, "meters": meters, "identity": self.identity()}
        self.world.on_main(lambda: self._write(parts, state))

    def _write(self, parts: dict[str, dict[str, Tensor]], state: dict[str, Any]) -> None:
        if self.lock is not None:
            self.lock.check()
        self.store.save(self.done.step, parts, state, self.manifest)
        self._settle()

    def _settle(self) -> None:
        """What follows a checkpoint: the name of the best one, and the end of those that are not kept."""
        best = self.done.best
        if best is not None:
            self.store.mark_best(best)
        self.store.prune(best["step"] if best is not None else None)

    def _finish(self) -> Path:
        """Note in the run's manifest that it is finished, and which checkpoint is the result."""
        out, last = self.store.folder.parent, self.store.at(self.done.step)
        result = {"finished": True, "checkpoint": last.relative_to(out).as_posix()}
        self.world.on_main(lambda: self._describe({**result, "files": read_state(last)["files"]}))
        self.world.on_main(lambda: terminal.made(out.name, outcome(out, self.done.step), out, *self.then))
        return last


def summary(task: Task, means: dict[str, float]) -> dict[str, float]:
    """Logged means as the task wants them read, if it has a word on that."""
    own = getattr(task, "summary", None)
    return means if own is None else {**own(means)}


def due(step: int, every: int) -> bool:
    """Is it time, with `every` = 0 for never?"""
    return every > 0 and step % every == 0


def close(batches: Iterator[Any]) -> None:
    """Let a feed end its background thread."""
    end = getattr(batches, "close", None)
    if end is not None:
        end()
