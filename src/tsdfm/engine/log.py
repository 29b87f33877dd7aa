"""What a run says: `metrics.jsonl` for machines, a display or plain lines for people; if asked, TensorBoard and W&B."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TextIO, TypedDict

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from tsdfm import terminal
from tsdfm.engine.wandb import WandbRun
from tsdfm.errors import UserError
from tsdfm.store.files import disk, parse_json, text_lines, write_text
from tsdfm.store.schema import Count, check, checked
from tsdfm.terminal import short

NAME = "metrics.jsonl"
FEW = 4
"""Plain lines of a training that is one stage of many, at most, and the seconds between them."""
PATIENCE = 60.0
LOWER, HIGHER = "lower is better", "higher is better"
RESULTS = {
    "elbo": ("elbo {:.2f}", f"nats a token ({LOWER})"),
    "nll": ("{:.2f}", f"nats a token ({LOWER})"),
    "strategy_acc": ("real text below its corruption in {:.1%}", f"of pairs ({HIGHER})"),
    "pair_accuracy": ("the true next state below a jump in {:.1%}", f"of pairs ({HIGHER})"),
}
"""How a held-out metric is told at the end, and its unit, with which way is better."""
UNITS = {name: unit for name, (_, unit) in RESULTS.items()} | {"bits_per_character": f"({LOWER})"}


class Metrics:
    """`metrics.jsonl`, one object a line: {"step": 100, "kind": "train", "loss": 3.2, …}.

    A run that resumes at `step` drops the lines after it, and a line that a kill cut short, so that the file reads as
    if the run had never been broken. Values that are not finite are written as null: JSON has no word for them.
    """

    def __init__(self, run: Path, step: int = 0) -> None:
        self.path = run / NAME
        with disk(self.path):
            run.mkdir(parents=True, exist_ok=True)
            kept = [line for line in self._lines() if _step(line) <= step] if step else []
            write_text(self.path, "".join(f"{line}\n" for line in kept))
            self._file = self.path.open("a", encoding="utf-8")

    def _lines(self) -> list[str]:
        if not self.path.is_file():
            return []
        return self.path.read_text(encoding="utf-8", errors="replace").split("\n")

    def write(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        """Add one line, flushed at once."""
        plain = {name: value if math.isfinite(value) else None for name, value in values.items()}
        with disk(self.path):
            self._file.write(json.dumps({"step": step, "kind": kind, **plain}) + "\n")
            self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_metrics(run: str | Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The lines of a run's metrics, all or of one kind (`train`, `eval`)."""
    path = Path(run) / NAME
    if not path.is_file():
        raise UserError(f"no {NAME} in {run}")
    out = []
    for number, text in text_lines(path, empty=True):
        with contextlib.suppress(ValueError):  # a line that a kill cut short
            out.append(checked(parse_json(text), Line, f"{path}, line {number},", "remove the line"))
    return [line for line in out if kind in (None, line["kind"])]


class Head(TypedDict):
    """What every line begins with."""

    step: Count
    kind: str


Line: Any = Annotated[dict[str, Any], Head, dict[str, int | float | str | None]]
"""A line of the file: besides its head, numbers that may be unknown."""


def _step(line: str) -> float:
    """The step of a line; infinite for one that is not whole."""
    try:
        found = parse_json(line)
        check(Head, found)
        return int(found["step"])
    except ValueError:
        return math.inf


class Board:
    """TensorBoard's files, beside metrics.jsonl."""

    def __init__(self, run: Path, step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError("TensorBoard is not installed: pip install 'tsdfm[tensorboard]'") from None
        self._writer: Any = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)

    def write(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        """Every value as a scalar `kind/name`."""
        for name, value in values.items():
            self._writer.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        self._writer.close()


class Display:
    """Progress for people: a live bar on a terminal, otherwise one plain line for each report."""

    def __init__(self, steps: int, start: int, stream: TextIO | None = None) -> None:
        self.steps, self._stream = steps, stream or sys.stderr
        self._told, self._when = start, time.monotonic()
        self._bar: Progress | None = None
        self._words = ""
        console = Console(file=self._stream)
        if console.is_terminal and not console.is_dumb_terminal:  # a dumb one cannot redraw, so it gets plain lines
            columns = (
                BarColumn(),
                TextColumn("{task.completed:.0f}/{task.total:.0f}"),
                TextColumn("{task.description}"),
            )
            self._bar = Progress(*columns, console=console, transient=True)
            self._job = self._bar.add_task("", total=steps, completed=start)
            self._bar.start()

    def advance(self, step: int) -> None:
        """A step is done (costs nothing without a terminal)."""
        if self._bar is not None:
            self._bar.update(self._job, completed=step)

    def report(self, step: int, values: Mapping[str, float], seconds_a_step: float) -> None:
        """Show the loss, the speed and the time left."""
        words = f"loss {values['loss']:.4f}  {short(values['tokens_per_s'])} tokens/s"
        words += f"  {duration(seconds_a_step * (self.steps - step))} left"
        if values["skipped"]:
            words += f"  {values['skipped']:.0f} steps skipped"
        self._words = words
        if self._bar is not None:
            self._bar.update(self._job, completed=step, description=words)
        elif not terminal.quiet() or self._due(step):
            self.say(f"step {step}/{self.steps}  {words}")

    def _due(self, step: int) -> bool:
        """Is it time for one of a few lines?"""
        now = time.monotonic()
        if step >= self.steps or step - self._told < self.steps / FEW or now - self._when < PATIENCE:
            return False
        self._told, self._when = step, now
        return True

    @contextlib.contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Show what takes a while, for as long as it does; without a terminal, a line that a pipeline leaves out."""
        if self._bar is None and not terminal.quiet():
            self.say(what)
        self._show(what)
        yield
        self._show(self._words)

    def _show(self, words: str) -> None:
        if self._bar is not None:
            self._bar.update(self._job, description=words)
            self._bar.refresh()

    def say(self, text: str) -> None:
        """One line that stays."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=self._stream, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class Log:
    """All of them together; on processes other than the first, none of them."""

    def __init__(self, run: Path, *, step: int, steps: int, tensorboard: bool, wandb: bool, main: bool) -> None:
        self._sinks: list[Metrics | Board | WandbRun] = []
        self._display: Display | None = None
        if main:
            board = [Board(run, step)] if tensorboard else []
            self._sinks = [Metrics(run, step), *board, *([WandbRun(run, step)] if wandb else [])]
            self._display = Display(steps, step)

    def write(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        """Values of a step to the metrics file and, if asked for, to TensorBoard and W&B."""
        for sink in self._sinks:
            sink.write(step, kind, values)

    def report(self, step: int, values: Mapping[str, float], seconds_a_step: float) -> None:
        """A line of a step's values for the user."""
        if self._display is not None:
            self._display.report(step, values, seconds_a_step)

    def advance(self, step: int) -> None:
        """Move the progress bar."""
        if self._display is not None:
            self._display.advance(step)

    def doing(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Show what takes a while."""
        return contextlib.nullcontext() if self._display is None else self._display.doing(what)

    def say(self, text: str) -> None:
        """A line for the user."""
        if self._display is not None:
            self._display.say(text)

    def detail(self, text: str) -> None:
        """One line that a pipeline leaves out."""
        if not terminal.quiet():
            self.say(text)

    def close(self) -> None:
        """Close all of them."""
        for sink in self._sinks:
            sink.close()
        if self._display is not None:
            self._display.close()


def outcome(run: Path, steps: int) -> str:
    """What a finished run came to, in a few words: steps, time, the held-out metric."""
    seconds = sum(line.get("seconds") or 0 for line in read_metrics(run, "train"))
    values = next(iter(read_metrics(run, "eval")[::-1]), {})
    known = [(*words, values[name]) for name, words in RESULTS.items() if values.get(name) is not None]
    told = [f"{words.format(value)} {unit}" for words, unit, value in known]
    return ", ".join([f"{steps:,} steps", duration(seconds), *told])


def spoken(values: Mapping[str, float]) -> str:
    """Held-out metrics as one line, with the units of those that have one."""
    return "  ".join(f"{name} {value:.4g} {UNITS.get(name, '')}".rstrip() for name, value in values.items())


class Stopwatch:
    """Seconds spent training, without the evaluations and saves between."""

    def __init__(self) -> None:
        self._start, self._out = time.perf_counter(), 0.0

    @contextlib.contextmanager
    def left_out(self) -> Iterator[None]:
        """What happens inside does not count."""
        before = time.perf_counter()
        yield
        self._out += time.perf_counter() - before

    def lap(self) -> float:
        """Seconds since the last lap."""
        now = time.perf_counter()
        spent = now - self._start - self._out
        self._start, self._out = now, 0.0
        return max(spent, 1e-9)


def duration(seconds: float) -> str:
    """3700 → 1h02m."""
    s = round(seconds)
    return f"{s // 3600}h{s % 3600 // 60:02d}m" if s >= 3600 else f"{s // 60}m{s % 60:02d}s" if s >= 60 else f"{s}s"
