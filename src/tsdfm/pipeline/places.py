"""Where the models of a recipe lie: in the pipeline's folder, or elsewhere.

A section with `use = PATH` trains nothing: that run, checkpoint or bundle takes the place of the model. What can be
told of it beforehand is: that it is there and whole, of the right kind and of the right source. Its tokenizer is
compared as soon as there are tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tsdfm.errors import UserError
from tsdfm.pipeline.plan import SOURCES, Stage, check_names, section, sources_of
from tsdfm.recipes import table
from tsdfm.settings import path_from
from tsdfm.store.bundle import find_shipped, find_weights
from tsdfm.store.manifest import NAME as MANIFEST
from tsdfm.tokens.rows import TokenRows

USE = "use"


@dataclass(frozen=True)
class Used:
    """A model that is not trained here: its path, and what its manifest says of the network."""

    name: str
    path: Path
    spec: Mapping[str, Any]

    def check_tokens(self, tokens: Path) -> None:
        """Refuse one of another tokenizer, or of other rows, than the pipeline's."""
        if not (tokens / MANIFEST).is_file():
            return  # each stage looks at its own
        rows = TokenRows(tokens, "train")
        if self.spec.get("tokenizer") != rows.fingerprint:
            raise UserError(f"{self.name}: {self.path} has another tokenizer than {tokens}: use one of the same tokens")
        if self.spec.get("length") != rows.length:
            found = self.spec.get("length")
            raise UserError(f"{self.name}: {self.path} has rows of {found} tokens and {tokens} of {rows.length}")


@dataclass(frozen=True)
class Places:
    """Where the models of one source lie: in a folder of `out`, or where their section's `use` says."""

    source: str
    out: Path
    used: Mapping[str, Used]

    @classmethod
    def of(cls, recipe: Mapping[str, Any], source: str, out: Path) -> Places:
        """Look through the recipe's sections; a `use` that will not do is refused."""
        if USE in section(recipe, "student", source):
            raise UserError("[student] is what all students have in common: say `use` in [students.NAME]")
        given = {name: (name, section(recipe, name, source)) for name in ("teacher", "compass")}
        for many, kind in (("compasses", "compass"), ("students", "student")):
            found = section(recipe, many, source)
            its = {name: table(found, name) for name in found}
            given |= {n: (kind, own) for n, own in its.items() if source in wanted_by(own.get("sources"), n, source)}
        wanted = {name: (kind, its[USE]) for name, (kind, its) in given.items() if its.get(USE) is not None}
        return cls(source, out, {name: model_at(name, kind, use, source) for name, (kind, use) in wanted.items()})

    def __getitem__(self, name: str) -> Path:
        """A model's run, checkpoint or bundle."""
        return self.used[name].path if name in self.used else self.out / self.key(name)

    def key(self, name: str) -> str:
        """What the run of a model that is trained here is called."""
        return f"{name}-{self.source}"


def wanted_by(sources: Any, name: str, source: str) -> list[str]:
    """The sources a section is for: all, if it says nothing."""
    found = [source] if sources is None else [sources] if isinstance(sources, str) else list(sources)
    check_names(found, SOURCES, f"source of {name}")
    return found


def model_at(name: str, kind: str, use: Any, source: str) -> Used:
    """The model that `use` names, if it may stand for `name`, which is a teacher, compass or student of a source."""
    if not isinstance(use, str) or not use:
        raise UserError(f"{name}: use takes the path of a run, a checkpoint or a bundle, not {use!r}")
    path = path_from(use, f"{name}: use")
    if not path.exists() and find_shipped(path) is None:
        raise UserError(f"{name}: use says {path}, and there is no such run, checkpoint or shipped model here")
    try:
        found = find_weights(path, kind, which="ema", choose="best" if kind == "compass" else "newest")
    except UserError as problem:
        raise UserError(f"{name}: use says {path}: {problem}") from None
    manifest = found.manifest
    spec = manifest.get("compass" if kind == "compass" else "model")
    is_student = isinstance(spec, Mapping) and bool(spec.get("step_size"))
    if not isinstance(spec, Mapping) or (kind != "compass" and is_student != (kind == "student")):
        raise UserError(f"{name}: use says {path}, which is no {kind} (its stage is {manifest.get('stage')!r})")
    if spec.get("source") != source:
        raise UserError(
            f"{name}: use says {path}, of the {spec.get('source')} source, and this is {source}: "
            f"say it under [source.{spec.get('source')}…] alone"
        )
    return Used(name, path, spec)


def used_stages(recipe: Mapping[str, Any], out: Path) -> list[Stage]:
    """Say of every model that is used which it is, and compare its tokenizer with the tokens."""
    return [
        Stage(f"{used.name}, {source} source: {used.path} is used", partial(used.check_tokens, out / "tokens"))
        for source in sources_of(recipe)
        for used in Places.of(recipe, source, out).used.values()
    ]
