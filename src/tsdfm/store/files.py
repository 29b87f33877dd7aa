"""Files that are complete or not there: JSON in one atomic step, hashes, and one clear line for a full disk."""

from __future__ import annotations

import contextlib
import errno
import functools
import glob
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tsdfm.errors import UserError
from tsdfm.machine import alive, machine
from tsdfm.settings import DEEPEST, no_deeper, parsed

FULL = {errno.ENOSPC, errno.EDQUOT}


def write_json(path: str | Path, value: Any) -> Path:
    """Write JSON so that a reader, or a kill, sees the old file or the new one and nothing between."""
    return write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n", errors="strict")


def write_text(path: str | Path, text: str, *, errors: str = "replace") -> Path:
    """The same for text. Half a surrogate pair in it becomes `?`, or with strict `errors` it raises.

    A link stays one: what it names is written. A device, a pipe or a stream by its name (/dev/stdout) is written to,
    and never replaced by a file.
    """
    asked = Path(path)
    with disk(asked):
        if _takes_a_stream(asked):
            with asked.open("w", encoding="utf-8", errors=errors, newline="\n") as file:
                file.write(text)
            return asked
        path = asked.resolve()
        path.parent.mkdir(parents=True, exist_ok=True)
        temp = unfinished(path)
        try:
            with temp.open("w", encoding="utf-8", errors=errors, newline="\n") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temp.replace(path)
        except BaseException:
            temp.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    return asked


def _takes_a_stream(path: Path) -> bool:
    """Is it a pipe, a device, or one of the names of this process's own streams, such as /dev/stdout?"""
    own = str(path) in ("/dev/stdout", "/dev/stderr") or path.is_relative_to("/dev/fd") or path.is_relative_to("/proc")
    return own or (path.exists() and not path.is_file() and not path.is_dir())


TABLES = {".csv", ".tsv", ".parquet", ".gz", ".xz", ".zst"}  # what a corpus may be, and a list of texts may not
MEND = "make it again, or restore it from a copy"


def unfinished(path: Path) -> Path:
    """Where `path` lies until it is whole: beside it, hidden, by the name of this process. Those of dead ones go."""
    sweep(path.parent, path.name)
    return path.with_name(f".{path.name}.tmp-{_here()}-{os.getpid()}")


def sweep(folder: Path, name: str | None = None) -> None:
    """Delete what processes of this machine, now dead, left unfinished in a folder, or of one `name` in it."""
    pattern = "*" if name is None else glob.escape(name)
    for left in folder.glob(f".{pattern}.tmp-{_here()}-*"):
        pid = left.name.rpartition("-")[2]
        if pid.isdecimal() and alive(int(pid)):
            continue
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


@functools.cache
def _here() -> str:
    """This machine in a few letters."""
    return hashlib.sha256(machine().encode()).hexdigest()[:8]


def read_json(path: str | Path, mend: str = MEND) -> dict[str, Any]:
    """A JSON object from a file this library wrote, or one clear line; `mend` says what to do where it is damaged."""
    value = read_any_json(path, mend)
    if not isinstance(value, dict):
        raise UserError(f"{path} is damaged (not a JSON object): {mend}")
    return value


def read_any_json(path: str | Path, mend: str = MEND) -> Any:
    """The same for JSON of any kind."""
    try:
        return parse_json(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"no file at {path}") from None
    except OSError as problem:
        raise UserError(f"cannot read {path} ({problem.strerror})") from None
    except ValueError as problem:
        raise UserError(f"{path} is damaged ({problem}): {mend}") from None


def parse_json(text: str) -> Any:
    """The value of JSON; a ValueError of a few words for all that is none, or could be used for nothing."""
    value = parsed(json.loads, text, json.JSONDecodeError)
    return no_deeper(value) if text.count("[") + text.count("{") > DEEPEST else value


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, or of stdin where the path is `-`, without a byte-order mark before it."""
    try:
        if str(path) == "-":
            return sys.stdin.read().removeprefix("\ufeff") if sys.stdin else ""
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"no file at {path}") from None
    except OSError as problem:
        raise UserError(f"cannot read {path} ({problem.strerror})") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text: convert it to UTF-8, or restore it from a copy") from None


def text_lines(path: Path, *, empty: bool = False) -> list[tuple[int, str]]:
    """The lines of a UTF-8 file, or of stdin where the path is `-`, that are not blank, with their numbers from 1.

    There must be some, unless it may be `empty`.
    """
    if path.suffix.lower() in TABLES:
        raise UserError(f"{path} is read neither as lines nor as JSON lines: make a .txt or .jsonl file of it")
    text = read_text(path)
    lines = [(number, line.removesuffix("\r")) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines and not empty:
        raise UserError(f"{path} holds no text")
    return lines


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


def file_sha256(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
