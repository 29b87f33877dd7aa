"""A folder that appears whole or not at all."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from tsdfm.errors import UserError
from tsdfm.store.checkpoint import writing
from tsdfm.store.files import disk, sync_folder, unfinished
from tsdfm.store.lock import held


@contextlib.contextmanager
def whole(out: Path) -> Iterator[Path]:
    """A folder to write into, which becomes `out` when all is written; an older `out` goes only then.

    An error leaves `out` as it was. After a kill the next one that writes there puts right what was left. One process
    at a time may.
    """
    out = out.resolve()
    with writing(out), held(out, out.with_name(f".{out.name}.lock")):
        _bring_back(out)
        temp = unfinished(out)
        temp.mkdir(parents=True)
        try:
            yield temp
            _put_in_place(temp, out)
        finally:
            shutil.rmtree(temp, ignore_errors=True)


def must_be_new(out: Path, flag: str) -> None:
    """Refuse a place that is not free: `out` is an empty folder, or nothing yet."""
    with disk(out):
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UserError(f"{out} is not an empty folder: give another {flag}")


def _older(out: Path) -> Path:
    """Where an older folder lies for the moment in which the new one takes its place."""
    return out.with_name(f".{out.name}.old")


def _put_in_place(temp: Path, out: Path) -> None:
    if out.exists():
        out.rename(_older(out))
    try:
        temp.rename(out)
    finally:
        _bring_back(out)
    sync_folder(out.parent)


def _bring_back(out: Path) -> None:
    """The older folder returns where no new one has taken its place, or else it goes."""
    old = _older(out)
    if old.exists() and not out.exists():
        old.rename(out)
    shutil.rmtree(old, ignore_errors=True)
