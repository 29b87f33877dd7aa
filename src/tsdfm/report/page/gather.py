"""What a pipeline's folder holds for the page. Nothing here needs a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tsdfm.engine.log import read_metrics
from tsdfm.errors import UserError
from tsdfm.report.page.markup import REAL
from tsdfm.samples.trajectory import Trajectory
from tsdfm.store.manifest import NAME as MANIFEST
from tsdfm.store.manifest import read_manifest

ORDER = ("corpus", "tokens", "teacher", "compass")  # then the students, then the report
TAKEN = ("metrics", "frontier", "manifest")


@dataclass(frozen=True)
class Stage:
    """A folder some stage made: its name, its manifest, and the lines of its metrics."""

    name: str
    manifest: dict[str, Any]
    lines: list[dict[str, Any]] = field(default_factory=list)

    @property
    def stage(self) -> str:
        return str(self.manifest.get("stage", self.name))

    @property
    def source(self) -> str | None:
        """The source of a model or a compass."""
        for place in ("model", "compass"):
            if isinstance(about := self.manifest.get(place), dict):
                return about.get("source")
        return None


@dataclass(frozen=True)
class Found:
    """All there is to show."""

    folder: Path
    rows: list[dict[str, Any]]
    compass: dict[str, Any]
    frontier: dict[str, Any]
    tables: dict[str, dict[str, Any]]
    stages: list[Stage]
    ways: list[Trajectory]

    @property
    def methods(self) -> list[str]:
        """Every method's label, in the order of the rows."""
        names = [label(row) for row in (*self.rows, *self.frontier_points())]
        return list(dict.fromkeys([*names, *(way_label(way) for way in self.ways)]))

    @property
    def real(self) -> dict[str, Any] | None:
        """The row of held-out text."""
        return next((row for row in self.rows if row.get("method") == REAL), None)

    @property
    def made(self) -> list[dict[str, Any]]:
        """The rows that a model made, at the temperature that most rows have."""
        made = [row for row in self.rows if row.get("steps") is not None]
        warmth = [row.get("temperature") for row in made]
        usual = max(set(warmth), key=warmth.count) if warmth else None
        return [row for row in made if row.get("temperature") == usual]

    @property
    def sources(self) -> list[str]:
        """The sources in the order of the rows."""
        return list(dict.fromkeys(str(row["source"]) for row in self.made))

    def frontier_points(self) -> list[dict[str, Any]]:
        """The frontier's points: rows with a perplexity and an entropy."""
        for place in ("points", "rows"):
            rows = self.frontier.get(place)
            if isinstance(rows, list):
                points = [row for row in (*rows, self.frontier.get("target")) if isinstance(row, dict) and _point(row)]
                if points:
                    return points
        return []


def _point(row: dict[str, Any]) -> bool:
    return all(isinstance(row.get(name), (int, float)) for name in ("ppl", "entropy_bits")) and "method" in row


def label(row: dict[str, Any]) -> str:
    """What a row is called: its method, and the policy that guided it."""
    guide = row.get("guide")
    if isinstance(guide, dict):
        guide = guide.get("policy")
    return f"{row.get('method')} + {guide}" if guide else str(row.get("method"))


def way_label(way: Trajectory) -> str:
    """The same of a trajectory."""
    return f"{way.method} + {way.guide}" if way.guide else way.method


def gather(folder: Path) -> Found:
    """Read everything in a pipeline's folder, or say that there is nothing."""
    report = folder / "report"
    if not folder.is_dir():
        raise UserError(f"no folder at {folder}: give the folder of a pipeline")
    files = [path for path in sorted(report.glob("*.json")) if path.stem not in TAKEN]
    tables = {path.stem: portable(read(path), folder) for path in files}
    exams = as_table(read(report / "compass.json", {}))
    found = Found(
        folder=folder,
        rows=[row for row in read(report / "metrics.json", []) if isinstance(row, dict)],
        compass=validations(folder) or {name: exam for name, exam in exams.items() if is_exam(exam)},
        frontier=as_table(portable(read(report / "frontier.json", {}), folder)),
        tables={
            name: tables[name] for name in sorted(tables, key=lambda n: (n != "main", n)) if is_table(tables[name])
        },
        stages=stages(folder),
        ways=load_ways(sorted((report / "trajectories").glob("*.json"))),
    )
    if not (found.rows or found.compass or found.tables or found.ways or any(s.lines for s in found.stages)):
        raise UserError(f"{folder} holds nothing to report: run `tsdfm pipeline` into it first")
    return found


def stages(folder: Path) -> list[Stage]:
    """Every stage's folder, in the order of the pipeline."""
    out = []
    for place in sorted(path.parent for path in folder.glob(f"*/{MANIFEST}")):
        lines = read_metrics(place) if (place / "metrics.jsonl").is_file() else []
        out.append(Stage(place.name, read_manifest(place), lines))
    return sorted(out, key=place_of)


def validations(folder: Path) -> dict[str, Any]:
    """The examination of each source's compass, from the compasses' own folders."""
    paths = sorted(
        folder.glob("*/validation.json"), key=lambda path: (not path.parent.name.startswith("compass"), path)
    )
    exams: dict[str, Any] = {}
    for exam in (as_table(read(path)) for path in paths):  # where a source has several, the plain one is shown
        if is_exam(exam):
            exams.setdefault(str(exam.get("source")), exam)
    return {source: exams[source] for source in sorted(exams, key=lambda name: name != "uniform")}


def is_exam(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("bins"), list)


def place_of(stage: Stage) -> tuple[int, str]:
    """Where a stage stands in the pipeline; students in the order in which they were made."""
    if stage.stage in ORDER:
        return ORDER.index(stage.stage), f"{stage.source != 'uniform'}"
    return len(ORDER) + (stage.stage == "report"), str(stage.manifest.get("created", ""))


def load_ways(paths: Sequence[Path]) -> list[Trajectory]:
    """Trajectories from files."""
    return [Trajectory.load(path) for path in paths]


def read(path: Path, otherwise: Any = None) -> Any:
    """JSON of any shape; NaN and infinities, which JSON has no word for, become none."""
    if otherwise is not None and not path.is_file():
        return otherwise
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as problem:
        raise UserError(f"cannot read {path} ({problem}): make it again, or remove it") from None


def portable(value: Any, folder: Path) -> Any:
    """Plain values with the folder's absolute path cut down to its name: a page may be passed on."""
    if isinstance(value, dict):
        return {name: portable(inner, folder) for name, inner in value.items()}
    if isinstance(value, list):
        return [portable(inner, folder) for inner in value]
    if isinstance(value, str):
        for home in {str(folder.resolve()), str(folder.absolute())} - {"/"}:
            value = value.replace(home, folder.resolve().name)
    return value


def as_table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def is_table(value: Any) -> bool:
    """Is it a table of `tsdfm report`? Other JSON in the folder is left alone."""
    return isinstance(value, dict) and isinstance(value.get("columns"), list) and isinstance(value.get("rows"), list)
