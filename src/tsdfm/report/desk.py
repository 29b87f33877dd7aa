"""What the table commands share: the runs, the bench, the row of held-out text, and where results go."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from tsdfm import terminal
from tsdfm.distil.settings import NavigateSettings
from tsdfm.errors import UserError
from tsdfm.report.bench import Bench
from tsdfm.report.cells import Cell, Cells
from tsdfm.report.hardware import hardware
from tsdfm.report.rows import REAL, Plain, Row
from tsdfm.report.runs import RunSet, TrainedRun, find_runs
from tsdfm.report.settings import GuidedSettings, MeasureSettings, ReportSettings
from tsdfm.report.table import Table
from tsdfm.samples.guide import Guide, guide_from
from tsdfm.store.bundle import is_bundle
from tsdfm.store.manifest import NAME as MANIFEST
from tsdfm.store.manifest import read_manifest

SAMPLES = 64
GUIDED = 32  # guided texts cost several times as much
SHORT = 12  # rows of a table that is not asked to be verbose
UNQUOTED = ("runs", "verbose")  # settings that are no flags of the command line in a table's notes


class Desk:
    """One table command at work.

    desk = Desk("main", settings, judged=True)
    row = desk.row(desk.runs.models[0], steps=8)       # sampled now, or taken from report/cells
    desk.finish(table)                                 # OUT/report/main.md, .tex, .json, and the terminal
    """

    def __init__(self, name: str, settings: ReportSettings, *, judged: bool = False, modelled: bool = False) -> None:
        self.name, self.settings = name, settings
        self.runs: RunSet = find_runs(settings.runs, settings.tokens)
        if settings.out is None and is_bundle(self.runs.home):
            raise UserError("a shipped model has no place for a report: give --out FOLDER")
        self.report = settings.out or self.runs.home / "report"
        self.measured = measured_before(self.runs.home / "report")
        self.measure = self._measure_settings()
        if judged and not (self.measure.world or self.measure.judges):
            raise UserError("no judge for these texts: give --judges (see docs/judges.md), or --world for stories")
        if modelled and not self.runs.models:
            raise UserError(f"no model in {self.runs.home}: name a teacher or a student")
        self.bench = Bench(self.measure, Cells(self.report / "cells"))
        self._target: Row | None = None
        self._judges: list[str] = []
        self._hardware: set[str] = set()

    def _measure_settings(self) -> MeasureSettings:
        given, before = self.settings, self.measured
        samples = given.samples
        if samples is None:
            samples = before.get("samples", SAMPLES)
            samples = min(samples, GUIDED) if isinstance(given, GuidedSettings) else samples
        return MeasureSettings(
            samples=samples,
            seed=given.seed if given.seed is not None else before.get("seed", 0),
            temperature=given.temperature,
            top_p=given.top_p,
            jump=given.jump,
            world=world_of(self.runs.home, before) if given.world is None else given.world,
            judges=given.judges or tuple(before.get("judges", ())),
            device=given.device,
        )

    def say(self, line: str) -> None:
        """A line on what has been done, for those who want to see it."""
        if self.settings.verbose:
            Console(stderr=True).print(line, highlight=False, soft_wrap=True)

    def cell(self, run: TrainedRun, steps: int, **how: Any) -> Cell:
        """The texts of a run at one step count; `how` is as `Bench.cell` takes it."""
        cell = self.bench.cell(run, steps, **how)
        self._hardware.add(cell.hardware)
        return cell

    def row(self, run: TrainedRun, steps: int) -> Row:
        """The row of a run at one step count."""
        return self.row_of(run, self.cell(run, steps))

    def row_of(self, run: TrainedRun, cell: Cell, *, guide: Guide | None = None, name: str | None = None) -> Row:
        """The row of a cell of a run with its collapse marked; `name` is what it calls the method."""
        row = self.bench.row(run, cell, guide=guide, name=name)
        self._judges = list(row.judges)
        self.say(spoken(row))
        return row.against(self.target()) if self.runs.tokens is not None else row

    def judged(self, cell: Cell) -> Row:
        """A cell that no sampler made before the judges."""
        row = self.bench.judged(cell)
        self._judges = list(row.judges)
        return row

    def target(self) -> Row:
        """The row of held-out text."""
        if self._target is None:
            self._target = self.bench.target(self.runs.tokens_or_refuse())
        return self._target

    def add_target(self, table: Table, judge: str | None = None, **more: Any) -> None:
        """The row of held-out text, before what is quoted from the paper."""
        if self.runs.tokens is None:
            table.notes.append("no held-out text was found, so no row could be checked for collapse")
            return
        row = self.target().under(judge) if judge else self.target()
        kept = ("ppl", "ppl_interval", "entropy_bits", "entropy_interval", "valid", "bigram_entropy_bits")
        plain = row.plain()
        found: Plain = {"source": "", "method": REAL, "origin": "", **{name: plain.get(name) for name in kept}, **more}
        ours = [i for i, other in enumerate(table.rows) if not other.get("paper")]
        table.rows.insert(ours[-1] + 1 if ours else 0, found)
        table.about["target"] = {name: value for name, value in plain.items() if name != "judges"}

    def guide(self, run: TrainedRun, policy: str, navigate: NavigateSettings, compass: Path | None) -> Guide | None:
        """A guide for the run's model."""
        place = compass or self.runs.compass_for(run)
        if place is None and policy != "blind" and navigate.selector != "random":
            raise UserError(f"no compass of the {run.source} source in {self.runs.home}: give --compass")
        return guide_from(policy, place if policy != "blind" else None, navigate, self.bench.model(run).velocity)

    def about(self, run: TrainedRun) -> Plain:
        """The fields that say which run a row is of."""
        known = {"source": run.source, "method": self.runs.label(run), "run": run.name}
        return {**known, "origin": f"ours, {size(run.parameters())}"}

    def finish(self, table: Table, *, sampled: bool = True, beside: bool = False) -> Path:
        """Complete, write and print a table, a `beside` one if verbose; returns the path of its JSON."""
        if table.quote is not None and any(row.get("paper") for row in table.rows):
            table.notes.append(table.quote.note())
        table.about = {
            "command": command_line(f"report {self.name}", self.settings),
            "hardware": ", ".join(sorted(self._hardware)) or hardware(self.settings.device),
            "seed": self.measure.seed if sampled else None,
            "samples": self.measure.samples if sampled else None,
            "judge_names": self._judges,
            **table.about,
        }
        path = table.save(self.report)
        if self.settings.verbose or not beside:
            table.show(most=None if self.settings.verbose else SHORT)
        rows = sum(not row.get("paper") for row in table.rows)
        told = f"{rows} row{'s' if rows != 1 else ''} (as .md, .tex and .json)"
        terminal.made(f"report {table.name}", told, path.with_suffix(".md"), *self.then())
        return path

    def then(self) -> tuple[str | Path, ...]:
        """The words of the command that comes next: the page, where it would find this report."""
        return ("report", "page", self.report.parent) if self.report.name == "report" else ()


def spoken(row: Row) -> str:
    """A row in one line."""
    said = f"{row.method}, {row.source}: {row.steps} steps"
    said += f", guide {row.guide}" if row.guide else ""
    said += f", T = {row.temperature:g}" if row.temperature != 1.0 else ""
    said += f", valid {row.valid.value:.3f}" if row.valid else ""
    said += f", perplexity {row.ppl.value:.2f}" if row.ppl else ""
    return f"{said}, entropy {row.entropy:.2f} bits"


def measured_before(report: Path) -> Plain:
    """The settings with which the runs were measured, if they were."""
    if not (report / MANIFEST).is_file():
        return {}
    found = read_manifest(report).get("settings")
    return found if isinstance(found, dict) else {}


def world_of(home: Path, before: Plain) -> str:
    """The story world the runs were measured with, or that their corpus is of; none for other texts."""
    if "world" in before:
        return before["world"] or ""
    if (home / "corpus" / MANIFEST).is_file():
        name = str(read_manifest(home / "corpus").get("settings", {}).get("name") or "")
        if name.startswith("world:"):
            return name.removeprefix("world:")
    return ""


def size(parameters: int) -> str:
    """`170M`, `1.3B`, `950K`."""
    for unit, name in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if parameters >= unit:
            return f"{parameters / unit:.3g}{name}"
    return str(parameters)


def command_line(verb: str, settings: Any) -> str:
    """The command that makes the same table again: what differs from the defaults."""
    words = ["tsdfm", *verb.split(), *(str(path) for path in settings.runs)]
    words += [word for pair in flags(settings) for word in pair]
    return shlex.join(words)


def flags(settings: Any, prefix: str = "--") -> list[tuple[str, str]]:
    """Every setting that is not at its default, as flag and value."""
    out: list[tuple[str, str]] = []
    for f in fields(settings):
        value, name = getattr(settings, f.name), f"{prefix}{f.name.replace('_', '-')}"
        if is_dataclass(value):
            out += flags(value, f"{name}.")
        elif f.name not in UNQUOTED and value != (f.default if f.default is not MISSING else None):
            items: Sequence[Any] = value if isinstance(value, tuple) else [value]
            texts = isinstance(value, tuple) and all(isinstance(item, str) for item in value)
            out += [(name, str(item)) for item in items] if texts else [(name, ",".join(map(str, items)))]
    return out
