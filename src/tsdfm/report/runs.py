"""Which runs a report is about: those in a pipeline's folder, those that are named, or the models of a bundle.

Read off their manifests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tsdfm.errors import UserError
from tsdfm.store.bundle import Bundle, find_shipped, read_bundle, unshipped
from tsdfm.store.checkpoint import has_checkpoint
from tsdfm.store.files import read_json
from tsdfm.store.manifest import NAME as MANIFEST
from tsdfm.store.manifest import read_manifest

ORDER = ("teacher", "fs-dfm", "control", "ts-dfm")
SOURCES = ("uniform", "mask")


@dataclass(frozen=True)
class Run:
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
    def is_student(self) -> bool:
        """Does it know its step size?"""
        return bool((self.manifest.get("model") or {}).get("step_size"))

    def input(self, name: str) -> Path | None:
        """Where an input of the run was when it ran."""
        found = self.manifest.get("inputs", {}).get(name)
        return Path(found["path"]) if found else None

    def started_from(self) -> str | None:
        """`DFM` for a student that started from a teacher, `FS-DFM` for one that started from a student."""
        origin = self.input("init_from")
        if origin is None and self.shipped and self.is_student and self.manifest.get("parent"):
            return "DFM" if str(self.manifest["parent"]).startswith("teacher") else "FS-DFM"  # a name is all it has
        if origin is None:
            return None
        for place in (origin, self.path.parent / origin.name):
            if (place / MANIFEST).is_file():
                return "FS-DFM" if Run(place, read_manifest(place)).is_student else "DFM"
        return "DFM" if origin.name.startswith("teacher") else "FS-DFM"

    def parameters(self) -> int:
        """Weights of the network, counted without making them."""
        import torch

        from tsdfm.nn.velocity import spec_in

        with torch.device("meta"):
            net = spec_in(self.manifest, self.path).network()
        return sum(p.numel() for p in net.parameters())


@dataclass(frozen=True)
class Found:
    """The runs of a report, in order: by source, then teacher, FS-DFM, control, TS-DFM, others."""

    home: Path
    models: tuple[Run, ...]
    compasses: tuple[Run, ...]
    tokens: Path | None

    def compass_for(self, run: Run) -> Path | None:
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

    def pick(self, methods: Sequence[str], what: str) -> list[Run]:
        """Of every folder, the runs of the first of these methods that any there has, one for each source."""
        if not self.models:
            raise UserError(f"no model in {self.home}: {what}")
        out = []
        for folder in dict.fromkeys(run.path.parent for run in self.models):
            here = [run for run in self.models if run.path.parent == folder]
            named = [[run for run in here if run.method == method] for method in methods]
            students = [run for run in here if run.is_student]
            out += first_of_each_source(next(filter(None, [*named, students]), here))
        return out


def first_of_each_source(runs: Iterable[Run]) -> list[Run]:
    """One run for each source."""
    out: dict[str, Run] = {}
    for run in runs:
        out.setdefault(run.source, run)
    return list(out.values())


def find_runs(paths: Sequence[Path], tokens: Path | None = None) -> Found:
    """The runs in a pipeline's folder (its subfolders with a manifest), the run folders themselves, or a bundle's."""
    if not paths:
        raise UserError("give a pipeline's folder, run folders, or the name of a model that came along")
    runs: list[Run] = []
    for path in dict.fromkeys(paths):
        shipped = find_shipped(path)
        runs += members(*shipped) if shipped else runs_at(made_by(path))
    if not any(run.kind in ("model", "compass") for run in runs):
        raise UserError(f"{paths[0]} holds no finished teacher, student or compass: give a pipeline's folder or runs")
    home = runs[0].path.parent
    models = sorted((r for r in runs if r.kind == "model"), key=place_of)
    compasses = sorted((r for r in runs if r.kind == "compass"), key=place_of)
    tokens = tokens or tokens_of(home, runs)
    same_tokenizer(models)
    if tokens is not None:
        same_tokens([run for run in models if run.shipped], tokens)
    return Found(home, tuple(models), tuple(compasses), tokens)


def members(bundle: Bundle, role: str | None) -> list[Run]:
    """The models of a bundle, or the one that is named."""
    roles = bundle.roles if role is None else [role]
    return [Run(bundle.folder / each, bundle.member(each).about, shipped=True) for each in roles]


def same_tokenizer(models: Sequence[Run]) -> None:
    """Refuse models whose texts are cut into other tokens than each other's: their entropies could not be compared."""
    kinds = {str(run.manifest["model"].get("tokenizer")): run for run in models}
    if len(kinds) > 1:
        one, other, *_ = (run.name for run in kinds.values())
        raise UserError(f"{one} and {other} have different tokenizers, so no table can compare them: report on each")


def same_tokens(runs: Sequence[Run], tokens: Path) -> None:
    """Refuse rows of another kind than those a bundle's models were trained on."""
    from tsdfm.nn.velocity import check_rows, spec_in
    from tsdfm.tokens.rows import TokenRows

    rows = TokenRows(tokens, "valid")
    for run in runs:
        spec, bundle = spec_in(run.manifest, run.path), run.path.parent.name
        layout = "document" if spec.anchor else "packed"
        made = f"tsdfm tokens --tokenizer-files {bundle} --length {spec.length} --layout {layout}"
        check_rows(spec, rows, bundle, f"make rows of your text with `{made} …`")


def made_by(path: Path) -> Path:
    """A folder as it is; for the name or file of a recipe, the folder its pipeline fills (nothing is trained twice)."""
    if path.is_dir():
        return path
    from tsdfm.recipes import shipped

    if path.suffix != ".toml" and str(path) not in shipped():
        raise UserError(f"no folder at {path}{unshipped(path)}: give a pipeline's folder, run folders or a recipe")
    from tsdfm.pipeline.run import run as run_pipeline
    from tsdfm.pipeline.settings import PipelineSettings

    out = PipelineSettings(recipe="").out if path.stem == "tiny_cpu" else Path("runs") / path.stem
    return run_pipeline(PipelineSettings(recipe=str(path), out=out))


def runs_at(path: Path) -> list[Run]:
    """The run a folder is, or the finished ones directly inside it."""
    own = Run(path, read_manifest(path)) if (path / MANIFEST).is_file() else None
    return [own] if own is not None and own.kind else in_folder(path)


def in_folder(folder: Path) -> list[Run]:
    """The finished runs directly inside a folder."""
    found = []
    for path in sorted(p for p in folder.iterdir() if (p / MANIFEST).is_file()):
        run = Run(path, read_json(path / MANIFEST))
        if run.kind == "tokens" or (run.kind is not None and has_checkpoint(path)):
            found.append(run)
    return found


def tokens_of(home: Path, runs: Sequence[Run]) -> Path | None:
    """The tokens: among what was given, in the pipeline's folder, or where the runs had them."""
    places = [run.path for run in runs if run.kind == "tokens"]
    places += [home / "tokens", *(place for run in runs if (place := run.input("tokens")) is not None)]
    return next((place for place in places if (place / MANIFEST).is_file()), None)


def place_of(run: Run) -> tuple[int, int, str]:
    """Where a run stands in a table."""
    source = SOURCES.index(run.source) if run.source in SOURCES else len(SOURCES)
    plain = run.name == f"compass-{run.source}"  # a second compass of a source comes after the first
    rank = ORDER.index(run.method) if run.method in ORDER else len(ORDER)
    return source, -1 if plain else rank, run.name
