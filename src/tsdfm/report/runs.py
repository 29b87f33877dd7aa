"""Which runs a report is about: those in a pipeline's folder, those that are named, or the models of a bundle.

Read off their manifests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tsdfm.engine.log import NAME as LOG
from tsdfm.engine.log import read_metrics
from tsdfm.errors import UserError
from tsdfm.methods import method_of
from tsdfm.store.bundle import find_shipped, read_bundle, unshipped
from tsdfm.store.checkpoint import has_checkpoint
from tsdfm.store.files import read_json
from tsdfm.store.manifest import NAME as MANIFEST
from tsdfm.store.manifest import read_manifest

ORDER = ("teacher", "fs-dfm", "control", "ts-dfm")  # of methods in tables and figures; others come after
SOURCES = ("uniform", "mask")


def rank(method: str) -> int:
    """Where a method stands among others."""
    return ORDER.index(method) if method in ORDER else len(ORDER)


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """A trained run and what its manifest says. A bundle's model has FOLDER/student, FOLDER/teacher, … for a path."""

    path: Path
    manifest: dict[str, Any]
    shipped: bool = False

    @property
    def name(self) -> str:
        """The folder's name; with the bundle's before it for a bundle's model."""
        return f"{self.path.parent.name}/{self.path.name}" if self.shipped else self.path.name

    @property
    def method(self) -> str:
        return str(self.manifest["stage"])

    @property
    def kind(self) -> str | None:
        """`model`, `compass`, `tokens`, or none of what a report needs."""
        model = self.manifest.get("model")
        if isinstance(model, dict) and "schedule" in model:
            return "model"
        if isinstance(self.manifest.get("compass"), dict):
            return "compass"
        return "tokens" if self.manifest.get("stage") == "tokens" else None

    @property
    def source(self) -> str:
        part = self.manifest.get("model") if self.kind == "model" else self.manifest.get("compass")
        return str((part or {}).get("source"))

    @property
    def settings(self) -> dict[str, Any]:
        found: dict[str, Any] = self.manifest.get("settings", {})
        return found

    @property
    def many_step(self) -> bool:
        """Does its method need many steps, as a teacher does?"""
        method = method_of(self.manifest)
        return method is not None and method.many_step

    @property
    def navigate(self) -> dict[str, Any]:
        """How its midpoints were navigated."""
        return dict(self.settings.get("navigate", {}))

    @property
    def blind(self) -> bool:
        """Were its midpoints blind, as FS-DFM's are?"""
        return bool(self.settings.get("policy", "blind") == "blind")

    @property
    def order(self) -> tuple[int, int, str]:
        """Where it stands in a table: by source, then by method; a second compass of a source after the first."""
        source = SOURCES.index(self.source) if self.source in SOURCES else len(SOURCES)
        return source, -1 if self.name == f"compass-{self.source}" else rank(self.method), self.name

    def input(self, name: str) -> Path | None:
        """Where an input of the run was when it ran."""
        found = self.manifest.get("inputs", {}).get(name)
        return Path(found["path"]) if found else None

    def started_from(self) -> str | None:
        """`DFM` for a student that started from a teacher, `FS-DFM` for one that started from a student."""
        origin = self.input("init_from")
        if origin is None and self.shipped and not self.many_step and self.manifest.get("parent"):
            return "DFM" if str(self.manifest["parent"]).startswith("teacher") else "FS-DFM"  # a name is all it has
        if origin is None:
            return None
        for place in (origin, self.path.parent / origin.name):
            if (place / MANIFEST).is_file():
                return "DFM" if TrainedRun(place, read_manifest(place)).many_step else "FS-DFM"
        return "DFM" if origin.name.startswith("teacher") else "FS-DFM"

    def log(self) -> list[dict[str, Any]]:
        """The lines of its `metrics.jsonl`; one that a kill cut short is left out."""
        return read_metrics(self.path) if (self.path / LOG).is_file() else []

    def parameters(self) -> int:
        """Weights of the network, counted without making them."""
        import torch

        from tsdfm.nn.velocity import spec_in

        with torch.device("meta"):
            net = spec_in(self.manifest, self.path).network()
        return sum(p.numel() for p in net.parameters())


@dataclass(frozen=True)
class RunSet:
    """The runs of a report, in order: by source, then teacher, FS-DFM, control, TS-DFM, others."""

    home: Path
    models: tuple[TrainedRun, ...]
    compasses: tuple[TrainedRun, ...]
    tokens: Path | None

    def compass_for(self, run: TrainedRun) -> Path | None:
        """The compass of the run's source: one found in its folder, its bundle's, one beside it, its own, any found."""
        fitting = [compass.path for compass in self.compasses if compass.source == run.source]
        near = [path for path in fitting if path.parent == run.path.parent]
        if run.shipped:
            bundle = read_bundle(run.path.parent)
            near += [bundle.folder / "compass"] if "compass" in bundle.roles else []
        beside = (run.path.parent / f"compass-{run.source}", run.input("compass"))
        near += [place for place in beside if place is not None and (place / MANIFEST).is_file()]
        return next(iter([*near, *fitting]), None)

    def tokens_or_refuse(self) -> Path:
        """The tokens folder."""
        if self.tokens is None:
            raise UserError(f"no tokens folder beside {self.home} or where its runs had it: give --tokens")
        return self.tokens

    def pick(self, method: str) -> list[TrainedRun]:
        """Of every folder and source, the first run of this method; else the first student, or a teacher."""
        if not self.models:
            raise UserError(f"no model in {self.home}: train a student first")
        out: list[TrainedRun] = []
        for folder in dict.fromkeys(run.path.parent for run in self.models):
            here = [run for run in self.models if run.path.parent == folder]
            named = [run for run in here if run.method == method]
            students = [run for run in here if not run.many_step]
            first: dict[str, TrainedRun] = {}
            for run in named or students or here:
                first.setdefault(run.source, run)
            out += first.values()
        return out

    def label(self, run: TrainedRun) -> str:
        """What a table calls a run: its method, and its folder where several have that method."""
        same = [other for other in self.models if (other.method, other.source) == (run.method, run.source)]
        return run.method if len(same) == 1 else f"{run.method} [{run.name}]"


def find_runs(paths: Sequence[str | Path], tokens: str | Path | None = None) -> RunSet:
    """The runs in a pipeline's folder (its subfolders with a manifest), the run folders themselves, or a bundle's."""
    if not paths:
        raise UserError("give a pipeline's folder, run folders, or the name of a shipped model")
    runs = [run for path in dict.fromkeys(map(Path, paths)) for run in runs_at(path)]
    if not any(run.kind in ("model", "compass") for run in runs):
        raise UserError(f"{paths[0]} holds no finished teacher, student or compass: give a pipeline's folder or runs")
    home = runs[0].path.parent
    models = sorted((r for r in runs if r.kind == "model"), key=lambda run: run.order)
    compasses = sorted((r for r in runs if r.kind == "compass"), key=lambda run: run.order)
    place = Path(tokens) if tokens else tokens_of(home, runs)
    same_tokenizer(models)
    if place is not None:
        same_tokens([run for run in models if run.shipped], place)
    return RunSet(home, tuple(models), tuple(compasses), place)


def same_tokenizer(models: Sequence[TrainedRun]) -> None:
    """Refuse models whose texts are cut into other tokens than each other's: their entropies could not be compared."""
    kinds = {str(run.manifest["model"].get("tokenizer")): run for run in models}
    if len(kinds) > 1:
        one, other, *_ = (run.name for run in kinds.values())
        raise UserError(f"{one} and {other} have different tokenizers, so no table can compare them: report on each")


def same_tokens(runs: Sequence[TrainedRun], tokens: Path) -> None:
    """Refuse rows of another kind than those a bundle's models were trained on."""
    from tsdfm.nn.velocity import check_rows, spec_in
    from tsdfm.tokens.rows import TokenRows

    rows = TokenRows(tokens, "valid")
    for run in runs:
        spec, bundle = spec_in(run.manifest, run.path), run.path.parent.name
        layout = "document" if spec.anchor else "packed"
        made = f"tsdfm tokens --tokenizer-files {bundle} --length {spec.length} --layout {layout}"
        check_rows(spec, rows, bundle, f"make rows of your text with `{made} …`")


def folder_at(path: Path) -> Path:
    """A folder of runs, or what to do where there is none. Nothing is trained here."""
    if path.is_dir():
        return path
    made = f"`tsdfm pipeline {path} --out FOLDER` makes those of a recipe"
    raise UserError(f"no folder at {path}{unshipped(path)}: give a pipeline's folder or run folders ({made})")


def runs_at(path: Path) -> list[TrainedRun]:
    """The models of a bundle, or the one that is named; the run a folder is, or the finished ones directly inside."""
    shipped = find_shipped(path)
    if shipped is not None:
        bundle, role = shipped
        roles = bundle.roles if role is None else [role]
        return [TrainedRun(bundle.folder / each, bundle.member(each).about, shipped=True) for each in roles]
    folder = folder_at(path)
    own = TrainedRun(folder, read_manifest(folder)) if (folder / MANIFEST).is_file() else None
    return [own] if own is not None and own.kind else in_folder(folder)


def run_at(path: str | Path) -> TrainedRun:
    """The one run a path means; of a bundle, its student."""
    shipped = find_shipped(path)
    return runs_at(shipped[0].folder / "student" if shipped and shipped[1] is None else Path(path))[0]


def in_folder(folder: Path) -> list[TrainedRun]:
    """The finished runs directly inside a folder."""
    found = []
    for path in sorted(p for p in folder.iterdir() if (p / MANIFEST).is_file()):
        run = TrainedRun(path, read_json(path / MANIFEST))
        if run.kind == "tokens" or (run.kind is not None and has_checkpoint(path)):
            found.append(run)
    return found


def tokens_of(home: Path, runs: Sequence[TrainedRun]) -> Path | None:
    """The tokens: among what was given, in the pipeline's folder, or where the runs had them."""
    places = [run.path for run in runs if run.kind == "tokens"]
    places += [home / "tokens", *(place for run in runs if (place := run.input("tokens")) is not None)]
    return next((place for place in places if (place / MANIFEST).is_file()), None)
