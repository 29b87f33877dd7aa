"""Which runs a report is about: those in a pipeline's folder, those that are named, or the models of a bundle.

Read off their manifests.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tsdfm.compass.settings import CompassSettings
from tsdfm.engine.log import NAME as LOG
from tsdfm.engine.log import read_metrics
from tsdfm.errors import UserError
from tsdfm.judges.settings import JudgeTrainSettings
from tsdfm.methods import Method, jump_for, method, method_of, names
from tsdfm.nn.layers import without_weights
from tsdfm.nn.velocity import VelocitySpec, check_rows, spec_in
from tsdfm.settings import comparable, defaults, merge
from tsdfm.store.bundle import find_shipped, read_bundle, unshipped, whereabouts
from tsdfm.store.checkpoint import has_checkpoint
from tsdfm.store.manifest import NAME as MANIFEST
from tsdfm.store.manifest import input_sha256, read_manifest
from tsdfm.tokens.rows import TokenRows

ORDER = ("teacher", "fs-dfm", "control", "ts-dfm")  # of methods in tables and figures; others come after
SOURCES = ("uniform", "mask")


def rank(name: str, known: Sequence[str] = ORDER) -> int:
    """Where a method (or a source) stands among others."""
    return known.index(name) if name in known else len(known)


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """A trained run and what its manifest says. A bundle's model has FOLDER/student, FOLDER/teacher, … for a path.

    `jump` is the one it writes by here, where that is not its method's own: `RUN@remdm-cap:0.1`.
    """

    path: Path
    manifest: dict[str, Any]
    shipped: bool = False
    jump: str = ""

    @property
    def name(self) -> str:
        """The folder's name; with the bundle's before it for a bundle's model."""
        return self._with_jump(f"{self.path.parent.name}/{self.path.name}" if self.shipped else self.path.name)

    @property
    def method(self) -> str:
        """What tables call it: the name its settings gave it, or its method's label."""
        return self._with_jump(str(self.manifest["stage"]))

    @property
    def place(self) -> Path:
        """What a command is given to mean it: its path, with the jump."""
        return Path(self._with_jump(str(self.path)))

    def _with_jump(self, name: str) -> str:
        return f"{name}@{self.jump}" if self.jump else name

    @property
    def called(self) -> str:
        """What tables call it: its method, and how many rounds of distillation it has gone through, if any."""
        rounds = (self.manifest.get("model") or {}).get("rounds", 0)
        return f"{self.method}, {rounds} round{'s' * (rounds > 1)}" if rounds else self.method

    @property
    def kind(self) -> str | None:
        """`model`, `compass`, `tokens`, or none of what a report needs."""
        if "schedule" in (self.manifest.get("model") or ()):
            return "model"
        if isinstance(self.manifest.get("compass"), dict):
            return "compass"
        return "tokens" if self.manifest.get("stage") == "tokens" else None

    @property
    def source(self) -> str:
        part = self.manifest.get("model" if self.kind == "model" else "compass")
        return str((part or {}).get("source"))

    @property
    def settings(self) -> dict[str, Any]:
        found = self.manifest.get("settings")
        return found if isinstance(found, dict) else {}

    @property
    def made_by(self) -> Method | None:
        """Its method, if it has one."""
        return method_of(self.manifest)

    @property
    def spec(self) -> VelocitySpec:
        """What its network is, from its manifest."""
        return spec_in(self.manifest, self.path)

    @property
    def navigate(self) -> dict[str, Any] | None:
        """How a compass navigated its midpoints, if one did."""
        return dict(self.settings.get("navigate", {})) if self.made_by and self.made_by.blind else None

    @property
    def many_step(self) -> bool:
        """Does its method need many steps, as a teacher does?"""
        return self.made_by is not None and self.made_by.many_step

    @property
    def prompted(self) -> bool:
        """Did it learn answers to prompts?"""
        return bool((self.manifest.get("model") or {}).get("prompted"))

    @property
    def control(self) -> bool:
        """Is its method what one that navigates would be without a compass?"""
        return self.made_by is not None and self.made_by.name in {method(name).blind for name in names()}

    @property
    def order(self) -> tuple[int, int, str]:
        """Where it stands in a table: by source, then by method; a second compass of a source after the first."""
        first = self.name == f"compass-{self.source}"
        return rank(self.source, SOURCES), -1 if first else rank(str(self.manifest["stage"])), self.name

    def input(self, name: str) -> Path | None:
        """Where an input of the run was when it ran."""
        found = self.manifest.get("inputs", {}).get(name)
        return Path(found["path"]) if found else None

    def origin(self) -> TrainedRun | Path | None:
        """The run that it started from, if it did; its path where it is gone."""
        parent = self.manifest.get("parent") if self.shipped and not self.many_step else None
        origin = self.input("init_from") or (Path(str(parent)) if parent else None)
        sha256 = self.manifest.get("inputs", {}).get("init_from", {}).get("sha256")
        place = whereabouts(origin, self.path, sha256) if origin else None
        return run_at(place) if place else origin

    @cached_property
    def recipe(self) -> str:
        """What it and the models before it were trained with and on, but for seeds and places: the same for all seeds.

        An input that is no run, or is gone, is known by the hash it had.
        """
        if self.kind == "tokens" and "key" in self.manifest:
            return str(self.manifest["key"])
        judge = JudgeTrainSettings if isinstance(self.manifest.get("judge"), dict) else None
        cls = CompassSettings if self.kind == "compass" else self.made_by.settings if self.made_by else judge
        if cls is None or not self.settings:
            return str(self.path)  # nothing is known of it
        own = comparable(merge(defaults(cls), self.settings), cls)  # a newer setting was at its default
        inputs = self.manifest.get("inputs", {})
        same = {name: value for name, value in own.items() if name.rpartition(".")[2] != "seed" and name not in inputs}
        places = {name: whereabouts(Path(about["path"]), self.path, about["sha256"]) for name, about in inputs.items()}
        runs = {name: TrainedRun(at, read_manifest(at)) for name, at in places.items() if at and not find_shipped(at)}
        grown = {name: hashlib.sha256(run.recipe.encode()).hexdigest() for name, run in runs.items()}
        before = {name: grown.get(name, about["sha256"]) for name, about in inputs.items()}
        return json.dumps([same, before], sort_keys=True)

    def started_from(self) -> str | None:
        """The method of what it started from, as the literature calls it; its folder's name if it is gone."""
        origin = self.origin()
        made_by = origin.made_by if isinstance(origin, TrainedRun) else None
        return made_by.title if made_by else origin.name if origin else None

    def tokens_seen(self) -> list[int | None]:
        """Tokens of its training, after those of what it started from; None for what is not known."""
        loop, model, origin = self.settings.get("loop") or {}, self.manifest["model"], self.origin()
        logged = [line["tokens"] for line in self.lines if line.get("tokens")]
        asked = int(loop["steps"] * loop["batch"] * model["length"]) if {"steps", "batch"} <= loop.keys() else None
        before = origin.tokens_seen() if isinstance(origin, TrainedRun) else [None] if origin else []
        return [*before, logged[-1] if logged else self.manifest.get("tokens", asked)]

    def bound(self) -> dict[str, float | None]:
        """The last bound of held-out text, in nats a token and bits a character, where it was evaluated."""
        found = [line for line in self.lines if line.get("elbo") is not None]
        return {"nats": found[-1]["elbo"], "bits": found[-1].get("bits_per_character")} if found else {}

    @property
    def bound_label(self) -> str:
        """What its bound is called: as its manifest says, or its method."""
        known = self.made_by.bound() if self.made_by else None
        return str(self.manifest.get("bound") or (known.label if known else "bound"))

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        """The lines of its `metrics.jsonl`; one that a kill cut short is left out."""
        return read_metrics(self.path) if (self.path / LOG).is_file() else []

    def parameters(self) -> int:
        """Weights of the network, counted without making them."""
        with without_weights():
            net = self.spec.network()
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
        out: dict[tuple[Path, str], TrainedRun] = {}
        for folder in dict.fromkeys(run.path.parent for run in self.models):
            here = [run for run in self.models if run.path.parent == folder]
            named = [run for run in here if run.method == method]
            for run in named or [run for run in here if not run.many_step] or here:
                out.setdefault((folder, run.source), run)
        return list(out.values())

    def label(self, run: TrainedRun) -> str:
        """What a table calls a run, with its folder where several are called so; its path where that is not enough."""
        same = [other for other in self.models if (other.called, other.source) == (run.called, run.source)]
        return run.called if len(same) == 1 else f"{run.called} [{apart(run, same)}]"


def apart(run: TrainedRun, others: Sequence[TrainedRun]) -> str:
    """As much of the end of a run's place as tells it from those of the others: a report may be passed on."""
    parts, places = run.place.parts, {other.place for other in others} - {run.place}
    for count in range(1, len(parts)):
        if not any(place.parts[-count:] == parts[-count:] for place in places):
            return Path(*parts[-count:]).as_posix()
    return str(run.place)


def find_runs(paths: Sequence[str | Path], tokens: str | Path | None = None, also: Sequence[str] = ()) -> RunSet:
    """The runs in a pipeline's folder (its subfolders with a manifest), the run folders themselves, or a bundle's.

    `also` are some of them once more by another jump: `METHOD@JUMP`, the method as tables call it.
    """
    if not paths:
        raise UserError("give a pipeline's folder, run folders, or the name of a shipped model")
    every = [run for path in map(Path, paths) for run in runs_at(path)]
    runs = list({(run.path.resolve(), run.jump): run for run in every}.values())  # one that is named twice is one
    runs += [run for word in also for run in once_more(word, runs)]
    models, compasses = (
        tuple(sorted((run for run in runs if run.kind == kind), key=lambda run: run.order))
        for kind in ("model", "compass")
    )
    if not models and not compasses:
        raise UserError(f"{paths[0]} holds no finished teacher, student or compass: give a pipeline's folder or runs")
    kinds = {str(run.manifest["model"].get("tokenizer")): run for run in models}
    if len(kinds) > 1:  # their entropies could not be compared
        one, other, *_ = (run.name for run in kinds.values())
        raise UserError(f"{one} and {other} have different tokenizers, so no table can compare them: report on each")
    for run in models:
        if run.jump:  # one that it cannot take is refused before anything is sampled
            jump_for(run.jump, run.spec)
    found = Path(tokens) if tokens else tokens_near(runs, [Path(path) for path in paths])
    if found is not None:
        same_tokens(models, found)
    return RunSet(runs[0].path.parent, models, compasses, found)


def tokens_near(runs: Sequence[TrainedRun], given: Sequence[Path]) -> Path | None:
    """The tokens folder: one that is `given`, the one that the models were trained on, one of its name, `tokens`, any.

    It is looked for in the pipeline's folder and where the runs had it. Those of another tokenizer come last.
    """
    models, home = [run for run in runs if run.kind == "model"], runs[0].path.parent
    trained = {run: run.manifest["inputs"]["tokens"] for run in runs if run.input("tokens")}
    own = [trained[run] for run in models if run in trained] or [*trained.values()]
    names, hashes = [Path(each["path"]).name for each in own], {each["sha256"] for each in own}
    places = [run.path for run in runs if run.kind == "tokens"]
    places += [home / "tokens", *(home / name for name in names), *(Path(each["path"]) for each in trained.values())]

    def order(place: Path) -> int:
        fits = not any(other_tokenizer(run, place) for run in models)
        known = (place in given, input_sha256(place) in hashes, fits and place.name in names)
        return (*known, fits and place == home / "tokens", fits, True).index(True)

    return min((place for place in places if (place / MANIFEST).is_file()), key=order, default=None)


def once_more(word: str, runs: Sequence[TrainedRun]) -> list[TrainedRun]:
    """The runs that `METHOD@JUMP` names, by that jump."""
    name, _, jump = word.partition("@")
    found = [replace(run, jump=jump) for run in runs if run.kind == "model" and name in (run.method, run.name)]
    if not jump or not found:
        known = ", ".join(dict.fromkeys(run.method for run in runs if run.kind == "model"))
        raise UserError(f"also takes METHOD@JUMP, not {word!r}; the methods here: {known}")
    return found


def other_tokenizer(run: TrainedRun, tokens: Path) -> bool:
    """Were these tokens made with another tokenizer than the model's?"""
    about, mine = read_manifest(tokens), run.manifest["model"].get("tokenizer")
    return about["stage"] == "tokens" and mine not in (None, about["tokenizer"]["fingerprint"])


def same_tokens(models: Sequence[TrainedRun], tokens: Path) -> None:
    """Refuse rows of another tokenizer than the models', and of another kind than those a bundle's were trained on."""
    for run in models:
        if run.shipped:
            spec, bundle = run.spec, run.path.parent.name
            layout = "document" if spec.anchor else "packed"
            made = f"tsdfm tokens --tokenizer-files {bundle} --length {spec.length} --layout {layout}"
            check_rows(spec, TokenRows(tokens, "valid"), bundle, f"make rows of your text with `{made} …`")
        elif other_tokenizer(run, tokens):
            raise UserError(f"{tokens} has another tokenizer than {run.name}: give --tokens those it was trained on")


def runs_at(path: Path) -> list[TrainedRun]:
    """The models of a bundle, or the one that is named; the run a folder is, or the finished ones directly inside.

    `PATH@JUMP` are the models that PATH means, written by this jump; a path that exists goes before.
    """
    place, at, jump = str(path).rpartition("@")
    if at and not path.exists():
        return [replace(run, jump=jump) for run in runs_at(Path(place)) if run.kind == "model"]
    shipped = find_shipped(path)
    if shipped is not None:
        bundle, role = shipped
        roles = bundle.roles if role is None else [role]
        return [TrainedRun(bundle.folder / each, bundle.member(each).about, shipped=True) for each in roles]
    if not path.is_dir():  # nothing is trained here
        made = f"`tsdfm pipeline {path if len(path.parts) == 1 else 'RECIPE'} --out FOLDER` makes those of a recipe"
        raise UserError(f"no folder at {path}{unshipped(path)}: give a pipeline's folder or run folders ({made})")
    own = TrainedRun(path, read_manifest(path)) if (path / MANIFEST).is_file() else None
    if own is not None and own.kind:
        return [own]
    inside = sorted(p for p in path.iterdir() if (p / MANIFEST).is_file())
    runs = [TrainedRun(p, read_manifest(p)) for p in inside]
    return [run for run in runs if run.kind == "tokens" or (run.kind and has_checkpoint(run.path))]


def run_at(path: str | Path) -> TrainedRun:
    """The one run a path means; of a bundle, its student."""
    shipped = find_shipped(path)
    return runs_at(shipped[0].folder / "student" if shipped and shipped[1] is None else Path(path))[0]
