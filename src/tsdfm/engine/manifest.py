"""What made an artifact: every stage leaves a `manifest.json` in its folder.

    write_manifest(out, stage="tokens", settings=settings, inputs={"corpus": settings.corpus}, extra={"rows": 12})
    read_manifest(out)["rows"]

A manifest holds the stage, its settings and seed, the versions of what ran, the hash of every input and the parent
artifact, so that what made a checkpoint can be read off it later. `extra` keys are written beside those at the top
level.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import platform
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tsdfm import __version__
from tsdfm.errors import UserError
from tsdfm.settings import to_dict

NAME = "manifest.json"
FULL = {errno.ENOSPC, errno.EDQUOT}


def write_manifest(
    folder: Path,
    *,
    stage: str,
    settings: Any,
    inputs: Mapping[str, Path],
    parent: Path | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Write `folder/manifest.json` in one atomic step and return its path."""
    made = make_manifest(stage=stage, settings=settings, inputs=inputs, parent=parent, extra=extra)
    return write_json(folder / NAME, made)


def make_manifest(
    *,
    stage: str,
    settings: Any,
    inputs: Mapping[str, Path],
    parent: Path | None = None,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What `write_manifest` writes."""
    plain = to_dict(settings)
    manifest: dict[str, Any] = {
        "stage": stage,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": _seed(plain),
        "settings": plain,
        "versions": versions(),
        "inputs": {name: describe(path) for name, path in inputs.items()},
        "parent": describe(parent) if parent is not None else None,
    }
    taken = manifest.keys() & (extra or {}).keys()
    if taken:
        raise ValueError(f"extra manifest keys {sorted(taken)} would hide the manifest's own")
    return {**manifest, **(extra or {})}


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of an artifact folder, or one clear line."""
    path = folder / NAME
    if not folder.is_dir():
        raise UserError(f"no folder at {folder}: give the output folder of an earlier stage")
    if not path.is_file():
        raise UserError(f"{folder} has no {NAME}: the stage that makes it has not finished; run it again")
    return read_json(path)


def describe(path: Path) -> dict[str, str]:
    """Where an input lies and the hash it had: of a file, or of the manifest of an artifact folder."""
    return {"path": str(path), "sha256": input_sha256(path)}


def input_sha256(path: Path) -> str:
    """sha256 of a file; of an artifact folder, the sha256 of its manifest, which itself holds the hashes of the rest.

    A plain folder (a user's own texts) has no manifest: there it covers each file's relative name and content.
    """
    if path.is_file():
        return file_sha256(path)
    if (path / NAME).is_file():
        return file_sha256(path / NAME)
    if not path.is_dir():
        raise UserError(f"no file or folder at {path}")
    whole = hashlib.sha256()
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        whole.update(f"{file.relative_to(path).as_posix()}\0{file_sha256(file)}\n".encode())
    return whole.hexdigest()


def file_sha256(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def versions() -> dict[str, str | None]:
    """What ran: tsdfm, Python, torch and the CUDA torch was built for."""
    import torch

    return {
        "tsdfm": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
    }


def write_json(path: Path, value: Any) -> Path:
    """Write JSON so that a reader, or a kill, sees the old file or the new one and nothing between."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    with disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temp = path.with_name(f".{path.name}.tmp-{os.getpid()}")
        try:
            with temp.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temp.replace(path)
        except BaseException:
            temp.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    return path


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file this library wrote, or one clear line."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"no file at {path}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as problem:
        raise UserError(f"{path} is damaged ({problem}): make it again, or restore it from a copy") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} is damaged (not a JSON object): make it again, or restore it from a copy")
    return value


@contextlib.contextmanager
def disk(path: Path) -> Iterator[None]:
    """Turn a full disk or a folder one may not write to into one line for the user."""
    try:
        yield
    except OSError as problem:
        if problem.errno in FULL:
            raise UserError(f"no disk space left for {path}: free some, then run the same command again") from None
        if problem.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
            raise UserError(f"may not write {path} ({problem.strerror}): choose another folder") from None
        if problem.errno in {errno.ENOTDIR, errno.EEXIST, errno.EISDIR}:
            raise UserError(f"cannot make {path}: something else of that name is in the way; choose another") from None
        raise


def sync_file(path: Path) -> None:
    """Make sure a file's content is on the disk, not only in memory."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make sure a rename inside `folder` is on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _seed(settings: Any) -> int | None:
    """The run's seed: a stage keeps it at the top of its settings or, if it trains, in `loop`."""
    for table in (settings, settings.get("loop") if isinstance(settings, dict) else None):
        if isinstance(table, dict) and isinstance(table.get("seed"), int):
            return int(table["seed"])
    return None
