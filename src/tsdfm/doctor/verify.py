"""`tsdfm verify`: compare every file of an artifact with the size and the sha256 that were written down with it.

Corpora, tokens, runs with all their checkpoints, single checkpoints, bundles, and folders of these (a pipeline's).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tsdfm import terminal
from tsdfm.errors import UserError
from tsdfm.settings import ModelPath, Settings, required


@dataclass(frozen=True, kw_only=True)
class VerifySettings(Settings):
    """Compare every file of artifacts with its size and hash, as they were when it was written."""

    paths: tuple[ModelPath, ...] = required(
        "corpora, tokens, runs, checkpoints, bundles, shipped names, or a pipeline's folder"
    )


@dataclass
class Verdict:
    """What was found of one artifact."""

    path: Path
    kind: str
    files: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {"path": str(self.path), "kind": self.kind} | {
            n: getattr(self, n) for n in ("files", "bytes", "problems")
        }


def run(settings: VerifySettings) -> list[Verdict]:
    """Look at all of them, say what was found of each, and refuse in the end if anything was wrong."""
    found = [look(folder) for path in settings.paths for folder in artifacts(path)]
    for verdict in found:
        for problem in verdict.problems:
            terminal.say(f"{verdict.path}: {problem}")
        state = f"{len(verdict.problems)} damaged" if verdict.problems else "whole"
        print(f"{verdict.path}: {verdict.kind}, {verdict.files} files, {verdict.bytes / 1e6:.1f} MB, {state}")
    if wrong := [verdict for verdict in found if verdict.problems]:
        total = sum(len(verdict.problems) for verdict in wrong)
        raise UserError(
            f"{total} file{'s are' if total > 1 else ' is'} not as written; the first is of {wrong[0].path}"
        )
    return found


def artifacts(path: Path) -> Iterator[Path]:
    """The artifact that a path is or names, or those directly inside it."""
    from tsdfm.store.bundle import find_shipped, unshipped
    from tsdfm.store.checkpoint import STATE
    from tsdfm.store.manifest import NAME

    shipped = find_shipped(path)
    if shipped is not None:
        yield shipped[0].folder
    elif (path / NAME).is_file() or (path / STATE).is_file():
        yield path
    else:
        inside = sorted(p.parent for p in path.glob(f"*/{NAME}"))
        if not inside:
            raise UserError(f"nothing that tsdfm made is at {path}{'' if path.exists() else unshipped(path)}")
        yield from inside


def look(folder: Path) -> Verdict:
    """Compare the files of one artifact."""
    from tsdfm.store.files import file_sha256
    from tsdfm.store.hashes import wrong_size

    verdict = Verdict(folder, "damaged")
    try:
        verdict.kind, files = known(folder)
    except UserError as refusal:
        verdict.problems.append(str(refusal))
        return verdict
    for name, expected in files.items():
        path = folder / name
        problem = wrong_size(path, expected)
        if problem is None and file_sha256(path) != expected.sha256:
            problem = "has another sha256 than it was written with"
        verdict.files += 1
        verdict.bytes += path.stat().st_size if path.is_file() else 0
        verdict.problems += [f"{name} {problem}"] if problem else []
    verdict.problems += tokenizer_problems(folder, verdict.kind)
    return verdict


def known(folder: Path) -> tuple[str, dict[str, Any]]:
    """What an artifact is, and what it knows of its files."""
    from tsdfm.store.bundle import is_bundle, read_bundle
    from tsdfm.store.checkpoint import STATE, Store, read_state
    from tsdfm.store.hashes import Known, listed
    from tsdfm.store.manifest import read_manifest

    def weights(checkpoint: Path) -> dict[str, Known]:
        place = checkpoint.relative_to(folder)
        files = read_state(checkpoint)["files"]
        return {(place / name).as_posix(): Known(about["sha256"], about["bytes"]) for name, about in files.items()}

    if (folder / STATE).is_file():
        return "checkpoint", weights(folder)
    if is_bundle(folder):
        members = read_bundle(folder).manifest["members"]
        return "bundle", {f"{role}.safetensors": Known(m["sha256"], m["bytes"]) for role, m in members.items()}
    store, stage = Store(folder), str(read_manifest(folder).get("stage"))
    files = {name: about for step in store.steps() for name, about in weights(store.at(step)).items()}
    return (f"run of {stage}" if files else stage), files | listed(folder)


def tokenizer_problems(folder: Path, kind: str) -> list[str]:
    """What is wrong with the artifact's tokenizer, which has its hash in itself and in the manifest."""
    from tsdfm.store.manifest import read_manifest
    from tsdfm.tokens.tokenizer import load_tokenizer

    if not (folder / "tokenizer").is_dir():
        return ["tokenizer is missing"] if kind in ("tokens", "bundle") else []
    try:
        made, manifest = load_tokenizer(folder), read_manifest(folder)
    except UserError as problem:
        return [str(problem)]
    about = manifest.get("tokenizer") or (manifest.get("model") or manifest.get("compass") or {}).get("tokenizer")
    name = about.get("fingerprint") if isinstance(about, dict) else about
    return [] if name in (None, made.fingerprint) else ["tokenizer is another than its manifest says"]
