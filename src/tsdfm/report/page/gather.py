"""What a pipeline's folder holds for the page. Nothing here needs a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from tsdfm.compass.validate import examined, read_validation
from tsdfm.errors import UserError
from tsdfm.report.rows import REAL, Plain, Row, finite, finite_or_none, rows_in, rows_of
from tsdfm.report.runs import SOURCES, TrainedRun, rank
from tsdfm.report.table import Column, Table, mapped
from tsdfm.samples.trajectory import Trajectory
from tsdfm.store.files import read_any_json, read_json
from tsdfm.store.manifest import NAME as MANIFEST
from tsdfm.store.manifest import read_manifest
from tsdfm.store.schema import checked

STAGES = ("corpus", "tokens", "teacher", "compass")  # then the students, then the report
MEND = "make it again, or remove it"
TAKEN = ("metrics", "manifest")
GLYPHS = ("●", "■", "▼", "◆", "▲", "✚", "✕", "★")


@dataclass(frozen=True)
class Gathered:
    """All there is to show."""

    folder: Path
    rows: list[Row]
    compass: dict[str, Plain]
    frontier: Table | None
    points: list[Row]
    tables: dict[str, Table]
    commands: list[str]
    stages: list[TrainedRun]
    ways: list[Trajectory]

    @property
    def methods(self) -> list[str]:
        """Every method's label, in the order of the rows."""
        return list(dict.fromkeys([*(row.label for row in (*self.rows, *self.points)), *map(way_label, self.ways)]))

    @property
    def real(self) -> Row | None:
        """The row of held-out text."""
        return next((row for row in (*self.rows, *self.points) if row.method == REAL), None)

    @property
    def made(self) -> list[Row]:
        """The rows that a model made, at the temperature that most rows have."""
        made = [row for row in self.rows if row.steps is not None]
        temperatures = [row.temperature for row in made]
        usual = max(set(temperatures), key=temperatures.count) if temperatures else None
        return [row for row in made if row.temperature == usual]

    @property
    def sources(self) -> list[str]:
        """The sources in the order of the rows."""
        return list(dict.fromkeys(str(row.source) for row in self.made))

    def styles(self) -> dict[str, int]:
        """Which colour, mark and dash each method has: the same in every figure of a page."""
        return styles_of(self.methods)


def styles_of(methods: Iterable[str]) -> dict[str, int]:
    """A style for each method: the known ones have their own, others share the rest."""
    known, others = rank(""), sorted(name for name in set(methods) if rank(name) == rank("") and name != REAL)
    rest = {name: known + i % (len(GLYPHS) - known) for i, name in enumerate(others)}
    return {name: rest.get(name, min(rank(name), len(GLYPHS) - 1)) for name in methods}


def way_label(way: Trajectory) -> str:
    """What a trajectory is called: its method, and the policy that guided it."""
    return f"{way.method} + {way.guide}" if way.guide else way.method


def gather(folder: str | Path) -> Gathered:
    """Read everything in a pipeline's folder, or say that there is nothing."""
    folder = Path(folder)
    report = folder / "report"
    if not folder.is_dir():
        raise UserError(f"no folder at {folder}: give the folder of a pipeline")
    files = sorted(report.glob("*.json"), key=lambda path: (path.stem != "main", path.stem == "frontier", path.stem))
    known = {path.stem: read_plain(path, folder) for path in files if path.stem not in TAKEN}
    tables = {name: one for name, one in known.items() if has_lists(one, "columns", "rows")}
    shown = {name: table_in(report, name, table) for name, table in tables.items()}
    swept = known.get("frontier", {})
    points = [*swept["points"], swept.get("target")] if has_lists(swept, "points") else []
    points = [p for p in points if isinstance(p, dict) and "method" in p]
    known_points = [p for p in points if finite(p.get("ppl")) and finite(p.get("entropy_bits"))]
    exams = sorted(folder.glob("*/validation.json"), key=lambda p: (not p.parent.name.startswith("compass"), p))
    made = sorted(folder.glob(f"*/{MANIFEST}"))
    found = Gathered(
        folder=folder,
        rows=rows_in(report / "metrics.json") if (report / "metrics.json").is_file() else [],
        compass=validations([path.parent for path in exams], report / "compass.json"),
        frontier=shown.pop("frontier", None),
        points=rows_of(known_points, report / "frontier.json"),
        tables=shown,
        commands=[str(table["command"]) for table in tables.values() if table.get("command")],
        stages=sorted((TrainedRun(p.parent, read_manifest(p.parent)) for p in made), key=place_of),
        ways=[Trajectory.load(path) for path in sorted((report / "trajectories").glob("*.json"))],
    )
    if not (found.rows or found.compass or found.tables or found.ways or any(s.lines for s in found.stages)):
        raise UserError(f"{folder} holds nothing to report: run `tsdfm pipeline` into it first")
    return found


class TableFile(TypedDict):
    """What is read of a table that a command wrote."""

    title: NotRequired[str | None]
    columns: list[Column]
    rows: list[Any]
    notes: NotRequired[list[str] | None]


def table_in(report: Path, name: str, found: Plain) -> Table:
    """A table that a command wrote, or one clear line."""
    return Table.read(name, checked(found, TableFile, report / f"{name}.json", MEND))


def group_of(run: TrainedRun) -> str:
    """What the losses of a stage's folder mean: those of a many-step model, a compass or a student."""
    if run.manifest.get("stage") == "compass" or "compass" in run.manifest:
        return "Compasses"
    return "Teachers" if run.many_step else "Students and others"


def place_of(run: TrainedRun) -> tuple[int, str]:
    """Where a stage's folder stands in the pipeline; students in the order in which they were made."""
    stage = run.manifest.get("stage", run.name)
    if stage in STAGES:
        about = run.manifest.get("model") or run.manifest.get("compass") or {}
        return STAGES.index(stage), f"{about.get('source') != 'uniform'}"
    return len(STAGES) + (stage == "report"), str(run.manifest.get("created", ""))


def validations(compasses: Sequence[Path], collected: Path) -> dict[str, Plain]:
    """The examination of each source's first compass, from the compasses' folders or as a pipeline collected them."""
    found = [read_validation(place / "validation.json") for place in compasses if (place / "validation.json").is_file()]
    if not found and collected.is_file():
        return {source: examined(exam, collected) for source, exam in read_json(collected).items()}
    out: dict[str, Plain] = {}
    for exam in sorted(found, key=lambda exam: rank(exam["source"], SOURCES)):
        out.setdefault(exam["source"], exam)
    return out


def has_lists(value: Any, *names: str) -> bool:
    """Has it these lists, as a table of `tsdfm report` has? Other JSON in the folder is left alone."""
    return isinstance(value, dict) and all(isinstance(value.get(name), list) for name in names)


def read_plain(path: Path, folder: Path) -> Any:
    """JSON of any shape as a page may show it: portable, and with none for what is no number."""
    return portable(mapped(read_any_json(path, MEND), finite_or_none), folder)


def portable(value: Any, folder: Path) -> Any:
    """Plain values with the folder's absolute path cut down to its name: a page may be passed on."""
    homes = {str(folder.resolve()), str(folder.absolute())} - {"/"}

    def cut(leaf: Any) -> Any:
        for home in homes if isinstance(leaf, str) else ():
            leaf = leaf.replace(home, folder.resolve().name)
        return leaf

    return mapped(value, cut)
