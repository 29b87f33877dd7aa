"""What made an artifact: every stage leaves a `manifest.json` in its folder.

    write_manifest(out, stage="tokens", settings=settings, inputs={"corpus": settings.corpus}, extra={"rows": 12})
    read_manifest(out)["rows"]

A manifest holds the stage, its settings and seed, the versions of what ran, the hash of every input and the parent
artifact, so that what made a checkpoint can be read off it later. What began as a public model says so (`descent`),
through any number of trainings. `extra` keys are written beside those at the top level.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tsdfm import __version__
from tsdfm.errors import UserError
from tsdfm.settings import to_dict
from tsdfm.store.files import file_sha256, read_json, write_json
from tsdfm.store.kinds import KINDS, Input, Manifest
from tsdfm.store.schema import checked

NAME = "manifest.json"


def write_manifest(
    folder: Path,
    *,
    stage: str,
    settings: Any,
    inputs: Mapping[str, Path | Input],
    parent: Path | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Write `folder/manifest.json` in one atomic step and return its path."""
    made = make_manifest(stage=stage, settings=settings, inputs=inputs, parent=parent, extra=extra)
    return write_json(folder / NAME, made)


def check_place(out: Path, stage: str) -> None:
    """Refuse a folder that another stage made: its manifest would be lost, and what it is with it."""
    if (out / NAME).is_file() and (found := read_json(out / NAME).get("stage")) != stage:
        raise UserError(f"{out} holds something else than what this makes (its stage is {found!r}): give another --out")


def make_manifest(
    *,
    stage: str,
    settings: Any,
    inputs: Mapping[str, Path | Input],
    parent: Path | None = None,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What `write_manifest` writes. An input is a path, or what `describe` says of one."""
    plain = to_dict(settings)
    manifest: dict[str, Any] = {
        "stage": stage,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": _seed(plain),
        "settings": plain,
        "versions": versions(),
        "inputs": {name: describe(it) if isinstance(it, Path) else it for name, it in inputs.items()},
        "parent": describe(parent) if parent is not None else None,
    }
    if parent is not None and (descent := descent_of(parent)):
        manifest["descent"] = descent
    taken = manifest.keys() & (extra or {}).keys()
    if taken:
        raise ValueError(f"extra manifest keys {sorted(taken)} would hide the manifest's own")
    return {**manifest, **(extra or {})}


def descent_of(artifact: Path) -> dict[str, Any]:
    """The public model that an artifact is, or descends from: source, revision, layout and licence, as far as known.

    `artifact` is a folder, or a model's file in a bundle, which is public itself if it has a licence.
    """
    path = (artifact if artifact.is_dir() else artifact.parent) / NAME
    found: Any = read_json(path) if path.is_file() else {}
    bundle, model = (found, found.get("members", {}).get(artifact.stem, {})) if artifact.is_file() else ({}, found)
    origin = model.get("origin") or model.get("descent") or {}
    if bundle.get("licence"):
        origin = {"source": bundle.get("name"), "licence": bundle["licence"], **origin}
    return {name: origin[name] for name in ("source", "revision", "layout", "licence") if origin.get(name)}


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """The manifest of an artifact folder, or one clear line."""
    folder = Path(folder)
    path = folder / NAME
    if not folder.is_dir():
        raise UserError(f"no folder at {folder}: give the output folder of an earlier stage")
    if not path.is_file():
        more = "no stage of tsdfm made it, or it was not finished (of texts, `tsdfm corpus --path` makes a corpus)"
        raise UserError(f"{folder} has no {NAME}: {more}")
    return checked_manifest(path)


def checked_manifest(path: Path) -> dict[str, Any]:
    """The manifest at `path`, which holds what that of its stage must."""
    found = read_json(path)
    return dict(checked(found, KINDS.get(str(found.get("stage")), Manifest), path))


def describe(path: Path) -> Input:
    """Where an input lies and the hash it had: of a file, or of the manifest of an artifact folder."""
    return {"path": str(path), "sha256": input_sha256(path)}


def input_sha256(path: Path, known: Mapping[str, str] | None = None) -> str:
    """sha256 of a file; of an artifact folder, the sha256 of its manifest, which itself holds the hashes of the rest.

    A plain folder (a user's own texts) has no manifest: there it covers each file's relative name and content.
    Hashes that are `known`, by spelled path, are not computed again.
    """
    known = known or {}
    if path.is_file():
        return known.get(spelled(path)) or file_sha256(path)
    if (path / NAME).is_file():
        return file_sha256(path / NAME)
    if not path.is_dir():
        raise UserError(f"no file or folder at {path}")
    whole = hashlib.sha256()
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        sha256 = known.get(spelled(file)) or file_sha256(file)
        whole.update(os.fsencode(file.relative_to(path).as_posix()) + f"\0{sha256}\n".encode())
    return whole.hexdigest()


def spelled(path: Path) -> str:
    """A path as text: a name need not be UTF-8."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def versions() -> dict[str, str | None]:
    """What ran: tsdfm, Python, torch and the CUDA torch was built for."""
    import torch

    return {
        "tsdfm": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
    }


def _seed(settings: Any) -> int | None:
    """The run's seed: a stage keeps it at the top of its settings or, if it trains, in `loop`."""
    for table in (settings, settings.get("loop") if isinstance(settings, dict) else None):
        if isinstance(table, dict) and isinstance(table.get("seed"), int):
            return int(table["seed"])
    return None
