"""Are the files of an artifact still what they were when it was made? Every folder holds their sizes and hashes.

    checked = check_inputs({"tokens": tokens}, run)     # before a stage reads: sizes always, hashes the first time
    remember(run, checked)                              # once it has begun

Weights are not looked at by `check_inputs`: whoever loads them compares their hash each time (`checkpoint`, `bundle`).
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tsdfm.errors import UserError
from tsdfm.store.files import MEND, file_sha256, read_json, write_json
from tsdfm.store.manifest import NAME as MANIFEST
from tsdfm.store.manifest import read_manifest

MEMORY = ".checked.json"
"""In a stage's folder: of each input, by the hash of its manifest, the files whose hashes were right, as they were."""


SPLITS = ("train", "valid")


class Known(NamedTuple):
    """What is written down of a file; older corpora have no sizes."""

    sha256: str
    bytes: int | None


def listed(folder: Path) -> dict[str, Known]:
    """The files of a corpus or of tokens whose hashes its manifest has, by name; of other artifacts none."""
    manifest = read_manifest(folder)
    stage, splits = manifest["stage"], [manifest["splits"][name] for name in SPLITS] if "splits" in manifest else []
    if stage == "corpus":
        whole = zip(SPLITS, splits, strict=True)
        files = [
            file for split, about in whole for file in about.get("files", [{"file": f"{split}.jsonl.gz", **about}])
        ]
        return {file["file"]: Known(file["sha256"], file.get("bytes")) for file in files}
    if stage == "tokens":
        columns = manifest["length"] + (manifest["layout"] == "prompt")  # a row with a prompt says how long that is
        size = int(manifest["dtype"].removeprefix("uint")) // 8
        shards = [shard for about in splits for shard in about["shards"]]
        return {
            shard["file"]: Known(shard["sha256"], shard.get("offset", 0) + stored(shard, columns) * size)
            for shard in shards
        }
    return {}


def joint_sha256(files: Iterable[Mapping[str, Any]]) -> str:
    """One hash for several files, by what is written down of each."""
    return hashlib.sha256("\n".join(file["sha256"] for file in files).encode()).hexdigest()


def stored(shard: Mapping[str, Any], columns: int) -> int:
    """How many numbers a shard of tokens holds, where a row is `columns` of them."""
    return int(shard.get("tokens", shard["rows"] * columns))


def check_sizes(folder: Path, files: Mapping[str, Known]) -> None:
    """Refuse a folder in which a file is missing or has another size than it had."""
    for name, known in files.items():
        if problem := wrong_size(folder / name, known):
            raise UserError(f"{folder / name} {problem}: {MEND}")


def wrong_size(path: Path, known: Known) -> str | None:
    """What is wrong with a file as far as its size tells."""
    if not path.is_file():
        return "is missing"
    size = path.stat().st_size
    return None if known.bytes in (None, size) else f"is damaged ({size} bytes instead of {known.bytes})"


def check_inputs(inputs: Mapping[str, Path], out: Path, only: Collection[str] | None = None) -> dict[str, Any]:
    """Refuse inputs that are not what their manifests say; `out` is the folder of the stage that takes them.

    Sizes are compared always. Hashes are compared when the stage takes an input for the first time, which it shall
    `remember`; and again of a file that was written to since. A part of a stage compares those of `only` its files.
    """
    memory = out / MEMORY
    before: dict[str, Any] = {}
    with contextlib.suppress(UserError):  # a damaged memory, or none
        before = read_json(memory)
    after: dict[str, Any] = {}
    for path in inputs.values():
        if not (path / MANIFEST).is_file() or not (files := listed(path)):
            continue
        check_sizes(path, files)
        key = file_sha256(path / MANIFEST)
        seen = before.get(key)
        after[key] = {name: _looks(path / name) for name in files}
        for name, known in files.items():
            same = isinstance(seen, dict) and seen.get(name) == after[key][name]
            if not same and (only is None or name in only) and file_sha256(path / name) != known.sha256:
                raise UserError(f"{path / name} was changed after it was made (sha256 differs): {MEND}")
    return after


def remember(out: Path, checked: Mapping[str, Any]) -> None:
    """Note in a stage's folder which inputs were found whole."""
    if checked:
        write_json(out / MEMORY, checked)


def _looks(path: Path) -> list[int]:
    """Size and time of a file: what changes when it is written to."""
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]
