"""What the table commands share: the runs, the judges, the cells, the row of held-out text, and where results go."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import Tensor

from tsdfm.distil.settings import NavigateSettings
from tsdfm.errors import UserError
from tsdfm.report.cells import Cell, Cells
from tsdfm.report.hardware import hardware
from tsdfm.report.measure import COLLAPSE, real_row, row_of, sampled, spoken
from tsdfm.report.paper import LABELS
from tsdfm.report.runs import Found, Run, find_runs
from tsdfm.report.score import Bench
from tsdfm.report.settings import GuidedSettings, MeasureSettings, ReportSettings
from tsdfm.report.table import Table
from tsdfm.samples.guide import Guide, guide_from
from tsdfm.samples.model import TextModel, load
from tsdfm.store.bundle import is_bundle
from tsdfm.store.manifest import NAME as MANIFEST
from tsdfm.store.manifest import read_manifest

SAMPLES = 64
GUIDED = 32  # guided texts cost several times as much


class Desk:
    """One table command at work.

    desk = Desk("main", settings)
    row = desk.row(desk.found.models[0], steps=8)      # sampled now, or taken from report/cells
    desk.finish(table)                                 # OUT/report/main.md, .tex, .json, and the terminal
    """

    def __init__(self, name: str, settings: ReportSettings, console: Console | None = None) -> None:
        self.name, self.settings = name, settings
        self.found: Found = find_runs(settings.runs, settings.tokens)
        if settings.out is None and is_bundle(self.found.home):
            raise UserError("a model that was passed on has no place for a report: give --out FOLDER")
        self.report = settings.out or self.found.home / "report"
        self.measured = measured_before(self.found.home / "report")
        self.measure = self._measure_settings()
        self.bench = Bench(self.measure, Cells(self.report / "cells"))
        self.console = console
        self.said = Console(stderr=True)
        self._model: tuple[Path, TextModel] | None = None
        self._target: dict[str, Any] | None = None
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
            world=world_of(self.found.home, before) if given.world is None else given.world,
            judges=given.judges or tuple(before.get("judges", ())),
            device=given.device,
        )

    def need_judge(self) -> None:
        """Refuse to begin where nothing could give a perplexity."""
        if not self.measure.world and not self.measure.judges:
            raise UserError("no judge for these texts: give --judges (see docs/judges.md), or --world for stories")

    def need_model(self) -> None:
        """Refuse to begin where there is no model to sample."""
        if not self.found.models:
            raise UserError(f"no model in {self.found.home}: name a teacher or a student")

    def model(self, run: Run) -> TextModel:
        """The run's model; the last one is kept, as tables go run by run."""
        if self._model is None or self._model[0] != run.path:
            self._model = (run.path, load(run.path, self.settings.device))
        return self._model[1]

    def cell(
        self,
        run: Run,
        steps: int,
        *,
        guide: Guide | None = None,
        temperature: float | None = None,
        bias: Tensor | None = None,
        seed: int | None = None,
        times: int = 1,
    ) -> Cell:
        """The texts of a run at one step count; of another seed, and several times as many, where that is asked."""
        settings = replace(self.measure, samples=times * self.measure.samples)
        settings = settings if seed is None else replace(settings, seed=seed)
        cell = sampled(
            settings, self.model(run), steps, self.bench.cells, guide=guide, temperature=temperature, bias=bias
        )
        self._hardware.add(cell.hardware)
        return cell

    def row(
        self, run: Run, steps: int, *, guide: Guide | None = None, temperature: float | None = None
    ) -> dict[str, Any]:
        """The row of a run at one step count, with its collapse marked."""
        return self.row_of(run, self.cell(run, steps, guide=guide, temperature=temperature), guide=guide)

    def row_of(self, run: Run, cell: Cell, *, guide: Guide | None = None, name: str | None = None) -> dict[str, Any]:
        """The row of a cell of a run; `name` is what it calls the method."""
        row = row_of(self.measure, self.model(run), cell, self.bench, guide=guide, name=name)
        self.mark(row)
        self.note_judges(row)
        self.said.print(spoken(row), highlight=False, soft_wrap=True)
        return row

    def mark(self, row: dict[str, Any]) -> None:
        """Say whether a row has collapsed, if there is held-out text to compare it with."""
        if self.found.tokens is not None:
            row["collapsed"] = row["entropy_bits"] < self.target()["entropy_bits"] - COLLAPSE

    def judge_names(self) -> list[str]:
        """The fingerprints of the judges, the first of them that whose figures stand in the rows themselves."""
        return [judge.fingerprint for judge in self.bench.judges()]

    def note_judges(self, row: dict[str, Any]) -> None:
        """Remember which judges a table rests on."""
        self._judges += [name for name in row.get("judges", ()) if name not in self._judges]

    def target(self) -> dict[str, Any]:
        """The row of held-out text."""
        if self._target is None:
            self._target = real_row(self.measure, self.found.tokens_or_refuse(), bench=self.bench)
        return self._target

    def guide(self, run: Run, policy: str, navigate: NavigateSettings, compass: Path | None) -> Guide | None:
        """A guide for the run's model."""
        place = compass or self.found.compass_for(run)
        if place is None and policy != "blind" and navigate.selector != "random":
            raise UserError(f"no compass of the {run.source} source in {self.found.home}: give --compass")
        return guide_from(policy, place if policy != "blind" else None, navigate, self.model(run).velocity)

    def label(self, run: Run) -> str:
        """What a table calls a run: its method, and its folder where several have that method."""
        same = [r for r in self.found.models if (r.method, r.source) == (run.method, run.source)]
        return run.method if len(same) == 1 else f"{run.method} [{run.name}]"

    def finish(self, table: Table, *, sampled: bool = True) -> Path:
        """Complete, write and print a table; returns the path of its JSON."""
        if any(row.get("paper") for row in table.rows):
            label = LABELS.get(self.name, "")
            table.notes.append(f"figures marked paper are the paper's ({label}): models of another scale, other judges")
        table.about = {
            "command": command_line(f"report {self.name}", self.settings),
            "hardware": ", ".join(sorted(self._hardware)) or hardware(self.settings.device),
            "seed": self.measure.seed if sampled else None,
            "samples": self.measure.samples if sampled else None,
            "judge_names": self._judges,
            **table.about,
        }
        path = table.save(self.report)
        table.show(self.console)
        self.said.print(f"{path.with_suffix('.md')}, .tex and .json", highlight=False, soft_wrap=True)
        return path


def measured_before(report: Path) -> dict[str, Any]:
    """The settings with which the runs were measured, if they were."""
    if not (report / MANIFEST).is_file():
        return {}
    found = read_manifest(report).get("settings")
    return found if isinstance(found, dict) else {}


def world_of(home: Path, before: dict[str, Any]) -> str:
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
        elif f.name != "runs" and value != (f.default if f.default is not MISSING else None):
            items: Sequence[Any] = value if isinstance(value, tuple) else [value]
            texts = isinstance(value, tuple) and all(isinstance(item, str) for item in value)
            out += [(name, str(item)) for item in items] if texts else [(name, ",".join(map(str, items)))]
    return out
