"""What the table commands share: the runs, the row of held-out text, and where results go."""

from __future__ import annotations

import shlex
from dataclasses import fields
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from tsdfm import terminal
from tsdfm.corpus.world import world_of_corpus
from tsdfm.distil.settings import NavigateSettings
from tsdfm.errors import UserError
from tsdfm.judges import Judge
from tsdfm.report.bench import Bench
from tsdfm.report.cells import Cell, Cells, hardware
from tsdfm.report.commands import TABLES, settings_of
from tsdfm.report.paper import QUOTES
from tsdfm.report.rows import REAL, Plain, Row
from tsdfm.report.runs import TrainedRun, find_runs
from tsdfm.report.settings import GuidedSettings, MeasureSettings, ReportSettings
from tsdfm.report.table import Column, Quote, Table
from tsdfm.samples.guide import Guide, guide_from
from tsdfm.settings import build, defaults, flat, to_dict
from tsdfm.store.bundle import is_bundle, whereabouts
from tsdfm.store.manifest import NAME as MANIFEST
from tsdfm.store.manifest import read_manifest
from tsdfm.tokens.rows import valid_rows

SAMPLES = 64
GUIDED = 32  # guided texts cost several times as much
SHORT = 12  # rows of a table that is not asked to be verbose
UNQUOTED = ("runs", "verbose")  # settings that are no flags of the command line in a table's notes


class Desk(Bench):
    """One table command at work: a bench with the runs it is about.

    def main(desk: Desk, settings: MainSettings) -> Table:    # what `run` calls
        row = desk.row(run, desk.cell(run, steps=8))          # sampled now, or taken from report/cells
        …
        return table                                          # OUT/report/main.md, .json, and the terminal
    """

    def __init__(self, name: str, settings: ReportSettings, *, judged: bool = False, modelled: bool = False) -> None:
        self.name, self.settings, self.reads = name, settings, judged
        self.runs = find_runs(settings.runs, settings.tokens, settings.also)
        if settings.out is None and is_bundle(self.runs.home):
            raise UserError("a shipped model has no place for a report: give --out FOLDER")
        self.report = settings.out or self.runs.home / "report"
        self.measured = measured_before(self.runs.home / "report")
        super().__init__(measure_settings(settings, self.measured, self.runs.home), Cells(self.report / "cells"))
        if judged and not (self.asked.world or self.asked.judges):
            raise UserError("no judge for these texts: give --judges (see docs/judges.md), or --world for stories")
        if modelled and not self.runs.models:
            raise UserError(f"no model in {self.runs.home}: name a teacher or a student")

    @cached_property
    def judges(self) -> list[Judge]:
        """The judges; of one that cannot be loaded and nobody named, where it comes from."""
        try:
            return super().judges
        except UserError as problem:
            if self.settings.judges or not self.asked.judges:
                raise
            raise UserError(f"{problem} (it is of the last measure: --judges names others)") from None

    @property
    def quote(self) -> Quote:
        """The paper's table that ours stands beside."""
        return QUOTES[self.name]

    def table(self, title: str, columns: list[Column]) -> Table:
        """The command's own table, without rows as yet."""
        return Table(self.name, title, columns, quote=QUOTES.get(self.name))

    def say(self, line: str) -> None:
        """A line on what has been done, for those who want to see it."""
        if self.settings.verbose:
            terminal.say(line)

    def row(self, run: TrainedRun, cell: Cell, *, name: str | None = None, guide: Guide | None = None) -> Row:
        """The row of a run's cell with its collapse marked; `name` is what it calls the method."""
        row = super().row(run, cell, guide=guide, name=name)
        self.say(spoken(row))
        return row.against(self.real())

    def rows(self, run: TrainedRun, steps: tuple[int, ...]) -> list[Row]:
        """The rows of a run at several step counts."""
        return [self.row(run, self.cell(run, at)) for at in steps]

    @cached_property
    def _real(self) -> Row | None:
        tokens = self.runs.tokens
        return self.target(tokens) if tokens is not None and valid_rows(tokens) is not None else None

    def real(self, judge: str | None = None) -> Row | None:
        """The row of held-out text, if there is such text, under the first judge or another."""
        return self._real.under(judge) if self._real and judge else self._real

    def add_target(self, table: Table, judge: str | None = None, **more: Any) -> None:
        """The row of held-out text, before what is quoted from the paper."""
        real = self.real(judge)
        if real is None:
            table.notes.append("no held-out text was found, so no row could be checked for collapse")
            return
        plain = real.plain()
        kept = ("ppl", "ppl_interval", "entropy_bits", "entropy_interval", "valid", "bigram_entropy_bits")
        found: Plain = {"source": "", "method": REAL, "origin": "", **{name: plain.get(name) for name in kept}, **more}
        ours = [i for i, other in enumerate(table.rows) if not other.get("paper")]
        table.rows.insert(ours[-1] + 1 if ours else 0, found)
        table.about["target"] = {name: value for name, value in plain.items() if name != "judges"}

    def guide(self, run: TrainedRun, policy: str, navigate: NavigateSettings, compass: Path | None) -> Guide | None:
        """A guide for the run's model."""
        place = compass or self.runs.compass_for(run)
        if place is None and policy != "blind" and navigate.selector != "random":
            raise UserError(f"no compass of the {run.source} source in {self.runs.home}: give --compass")
        return guide_from(policy, place, navigate, self.model(run).velocity)

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
            "hardware": ", ".join(sorted(self.hardware)) or hardware(self.settings.device),
            "seed": self.asked.seed if sampled else None,
            "samples": self.asked.samples if sampled else None,
            "judge_names": self.judge_names() if self.reads else [],
            **table.about,
        }
        path = table.save(self.report)
        if self.settings.verbose or not beside:
            table.show(most=None if self.settings.verbose else SHORT)
        rows = sum(not row.get("paper") for row in table.rows)
        told = f"{rows} row{'s' if rows != 1 else ''} (as .md and .json)"
        terminal.made(f"report {table.name}", told, path.with_suffix(".md"), *self.then())
        return path

    def then(self) -> tuple[str | Path, ...]:
        """The words of the command that comes next: the page, where it would find this report."""
        return ("report", "page", self.report.parent) if self.report.name == "report" else ()


def run(settings: ReportSettings, *, beside: bool = False) -> Path:
    """Make the table that these settings are of, as `tsdfm report NAME` does; returns the path of its JSON."""
    name, made = next((n, made) for n, made in TABLES.items() if settings_of(n) == type(settings).__name__)
    desk = Desk(name, settings, judged=made.judged, modelled=made.modelled)
    module, _, function = made.run.partition(":")
    table = getattr(import_module(f"tsdfm.report.commands.{module}"), function)(desk, settings)
    return desk.finish(table, sampled=made.modelled, beside=beside)


def measure_settings(given: ReportSettings, before: Plain, home: Path) -> MeasureSettings:
    """How texts are made and judged: as is asked, or as the runs were measured `before`."""
    samples = before.get("samples", SAMPLES)
    samples = min(samples, GUIDED) if isinstance(given, GuidedSettings) else samples
    same = {name: getattr(given, name) for name in ("temperature", "top_p", "jump", "device", "quick")}
    return MeasureSettings(
        samples=samples if given.samples is None else given.samples,
        seed=before.get("seed", 0) if given.seed is None else given.seed,
        world=world_of(home, before) if given.world is None else given.world,
        judges=given.judges or tuple(remembered(spec, home) for spec in before.get("judges", ())),
        **same,
    )


def remembered(judge: str, home: Path) -> str:
    """A judge of the last measure: after a move, the judge run of its name in the pipeline's folder."""
    place = whereabouts(Path(judge), home / "report")
    moved = place is not None and place != Path(judge) and isinstance(read_manifest(place).get("judge"), dict)
    return str(place) if moved else judge


def spoken(row: Row) -> str:
    """A row in one line."""
    said = f"{row.method}, {row.source}: {row.steps} steps"
    said += f", guide {row.guide}" if row.guide else ""
    said += f", T = {row.temperature:g}" if row.temperature != 1.0 else ""
    said += f", valid {row.valid.value:.3f}" if row.valid else ""
    said += f", perplexity {row.ppl.value:.2f}" if row.ppl else ""
    return f"{said}, entropy {row.entropy:.2f} bits"


def settings_in(folder: Path) -> Plain:
    """The settings that the manifest of a folder holds; none where there is no manifest."""
    return TrainedRun(folder, read_manifest(folder)).settings if (folder / MANIFEST).is_file() else {}


def measured_before(report: Path) -> Plain:
    """The settings with which the runs were measured, if they were."""
    found = settings_in(report)
    known = {f.name: found[f.name] for f in fields(MeasureSettings) if f.name in found}
    build(MeasureSettings, known, str(report / MANIFEST))  # which refuses what is damaged
    return known


def world_of(home: Path, before: Plain) -> str:
    """The story world the runs were measured with, or that their corpus is of; none for other texts."""
    if "world" in before:
        return before["world"] or ""
    return world_of_corpus(settings_in(home / "corpus").get("name"))


def size(parameters: int) -> str:
    """`170M`, `1.3B`, `950K`."""
    for unit, name in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if parameters >= unit:
            return f"{parameters / unit:.3g}{name}"
    return str(parameters)


def command_line(verb: str, settings: Any) -> str:
    """The command that makes the same table again: what differs from the defaults."""
    words = ["tsdfm", *verb.split(), *(str(path) for path in settings.runs)]
    return shlex.join([*words, *flags(settings)])


def flags(settings: Any) -> list[str]:
    """Every setting that is not at its default, as flag and value."""
    out, usual = list[str](), flat(defaults(type(settings)))
    for name, value in flat(to_dict(settings)).items():
        flag, items = f"--{name.replace('_', '-')}", value if isinstance(value, list) else [value]
        if name in UNQUOTED or value == usual.get(name):
            continue
        if isinstance(value, list) and all(isinstance(item, str) for item in items):
            out += [word for item in items for word in (flag, item)]  # a text may hold a comma
        else:
            out += [flag, ",".join(map(str, items))]
    return out
