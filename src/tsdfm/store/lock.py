"""One process at a time writes into a run's folder.

    with held(run) as lock:
        …
        lock.check()                 # before what is written: is it still ours?

    RUN/.lock    {"host", "machine", "pid", "started", "since", "token"}

The file appears whole or not at all, by a hard link, which is one step on network file systems too (by O_EXCL where
there are no links). Whether a holder is dead is asked of the system if it ran on this machine: a process of that number
and that time of birth is there, or it is not. Of another machine nothing can be asked. So a holder touches its file
every `BEAT` seconds; one that was not touched for `SILENCE` seconds by the file system's own clock is taken over.
Processes of one machine make and remove the file one after another, by `flock` on the folder that it lies in: a slow
one that found a holder dead cannot remove the file of the process that was faster.

A holder that slept through that (a suspended process, a network that was cut) finds out by `check`, and writes no more.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tsdfm import terminal
from tsdfm.errors import UserError
from tsdfm.machine import alive, machine, started
from tsdfm.store.files import disk

NAME = ".lock"
PATIENCE = 5.0  # seconds after which a process says that it waits
BEAT, SILENCE, LOOK = 15.0, 120.0, 0.5  # seconds between signs of life, without any of them, and between looks


@dataclass
class Lock:
    """A folder that this process holds; `path` is the file that says so."""

    folder: Path
    path: Path
    thread: int
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    made: list[Path] = field(default_factory=list)  # folders that were not there before, the innermost first

    def check(self) -> None:
        """Refuse to go on where another process has taken the folder over. A file that somebody deleted is renewed."""
        with _alone(self.path.parent):
            holder = _read(self.path)
            if holder is None and _create(self.path, self.token):
                return
        holder = holder or {}
        if holder.get("token") != self.token:
            raise UserError(
                f"{self.folder} was taken over by {_named(holder)}, as this process gave no sign of life: "
                "it writes nothing more there"
            )

    def release(self) -> None:
        """Let others have it, and leave no empty folder that was not there before."""
        with _alone(self.path.parent):
            holder = _read(self.path)
            if holder is not None and holder.get("token") == self.token:
                self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # something was written
            for folder in self.made:
                folder.rmdir()


class Holders:
    """The locks of this process, and the thread that gives signs of life for them."""

    def __init__(self) -> None:
        self.start_anew()

    def start_anew(self) -> None:
        """A process that was forked holds nothing."""
        self.guard = threading.Lock()
        self.locks: dict[Path, Lock] = {}
        self.beating = False

    def add(self, lock: Lock) -> None:
        with self.guard:
            self.locks[lock.path] = lock
            if not self.beating:
                self.beating = True
                threading.Thread(target=self.beat, daemon=True, name="lock").start()

    def beat(self) -> None:
        """Touch the files as long as there are any."""
        while self.beating:
            time.sleep(BEAT)
            self.touch()

    def touch(self) -> None:
        """A sign of life for each of them."""
        with self.guard:
            files = list(self.locks)
            self.beating = bool(files)
        for path in files:
            with contextlib.suppress(OSError):  # `check` tells
                os.utime(path)


HOLDERS = Holders()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=HOLDERS.start_anew)


class InUse(UserError):
    """Another process holds the folder."""


@contextlib.contextmanager
def held(folder: Path, file: Path | None = None, *, wait: bool = False) -> Iterator[Lock]:
    """Hold a folder, or refuse in one line that says who does; with `wait`, once they let go. A thread may ask again.

    `file` is the lock's own path where the folder is not there before it is whole.
    """
    path = (file or folder / NAME).absolute()
    known = HOLDERS.locks.get(path)
    if known is not None and known.thread == threading.get_ident():
        yield known
        return
    lock, waited = None, 0.0
    while lock is None:
        try:
            lock = _take(folder, path)
        except FileNotFoundError as problem:  # a file system that takes no files, such as /proc
            raise UserError(f"cannot make {folder} ({problem.strerror}): choose another folder") from None
        except InUse:
            if not wait:
                raise
            if (waited := waited + LOOK) == PATIENCE:
                terminal.say(f"waiting for another process, which works on {folder}")
            time.sleep(LOOK)
    HOLDERS.add(lock)
    try:
        yield lock
    finally:
        with HOLDERS.guard:
            HOLDERS.locks.pop(path, None)
        lock.release()


def clear(folder: Path, file: Path | None = None) -> None:
    """Remove the lock of a process of this machine that was killed when it had just finished."""
    path = file or folder / NAME
    holder = _read(path)
    if holder is not None and holder.get("machine") == machine() and not _alive(holder):
        with contextlib.suppress(OSError):  # it is not ours to write in
            _take_away(path, holder)


@contextlib.contextmanager
def _alone(place: Path) -> Iterator[None]:
    """No other process or thread of this machine is in this block for the same folder, for as long as the block.

    The system lets go of it when a process dies. Some network file systems have no locks of folders: there it does
    nothing, and a take-over is as sure as renaming makes it (`_take_away`).
    """
    try:
        handle = os.open(place, os.O_RDONLY)
    except OSError:  # gone, or not ours to read
        yield
        return
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _take(folder: Path, path: Path) -> Lock:
    lock = Lock(folder, path, threading.get_ident())
    with disk(folder):
        lock.made = [place for place in (path.parent, *path.parent.parents) if not place.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            with _alone(path.parent):
                if _create(path, lock.token):
                    for left in path.parent.glob(f"{glob.escape(path.name)}.*"):  # of one that was killed as it tried
                        left.unlink(missing_ok=True)
                    return lock
            holder = _read(path)
            if holder is not None and _gone(holder, folder, path):
                _take_away(path, holder)


def _create(path: Path, token: str) -> bool:
    """Make the lock's file in one step; False where there is one."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    about = {"host": socket.gethostname(), "machine": machine(), "pid": os.getpid(), "started": started(os.getpid())}
    content = json.dumps({**about, "since": since, "token": token}).encode()
    temp = path.with_name(f"{path.name}.{token}")
    try:
        temp.write_bytes(content)
        try:
            os.link(temp, path)
        except FileExistsError:
            return False
        except OSError:  # a file system without links
            return _create_alone(path, content)
    finally:
        temp.unlink(missing_ok=True)
    return True


def _create_alone(path: Path, content: bytes) -> bool:
    """The same by O_EXCL: in one step too, but the content comes after."""
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    except FileExistsError:
        return False
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    return True


def _read(path: Path) -> dict[str, Any] | None:
    """What the file says of the holder; nothing of one that is damaged, None where there is no file."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _take_away(path: Path, holder: dict[str, Any]) -> None:
    """Remove the file of a holder that is gone. Of several processes that try, one moves this very file away."""
    moved = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    with _alone(path.parent):
        if _read(path) != holder:
            return
        try:
            path.rename(moved)
        except FileNotFoundError:
            return
        if _read(moved) != holder:  # somebody on another machine was faster, and holds the folder now: give it back
            with contextlib.suppress(OSError):
                os.link(moved, path)
        moved.unlink(missing_ok=True)


def _gone(holder: dict[str, Any], folder: Path, path: Path) -> bool:
    """Is the holder dead? A live one is refused in one line."""
    remedy = "wait for it, or give another folder"
    if holder.get("machine") == machine():
        if not _alive(holder):
            return True
    elif _silent(holder, folder, path):
        terminal.say(f"{folder} was held by {_named(holder)}, which has given no sign of life: it is taken over")
        return True
    else:
        remedy += f"; if you know that it is gone, delete {path}"
    raise InUse(f"{folder} is in use by {_named(holder)} since {holder.get('since', 'some time')}: {remedy}")


def _alive(holder: dict[str, Any]) -> bool:
    """Is the process of that number the one that took the lock?"""
    text = str(holder.get("pid"))
    return text.isdecimal() and alive(int(text)) and started(int(text)) in (holder.get("started"), None)


def _silent(holder: dict[str, Any], folder: Path, path: Path) -> bool:
    """Does a holder on another machine give no sign of life? Waits until it gives one or has given none for long."""
    first, waiting = None, False
    while True:
        try:
            with path.open("rb") as file:  # opening asks a network file system for the newest
                touched = os.fstat(file.fileno()).st_mtime
        except FileNotFoundError:
            return True
        first = touched if first is None else first
        if touched != first:
            return False
        if _clock(path) - touched > SILENCE:
            return True
        if not waiting:
            terminal.say(f"waiting for a sign of life of {_named(holder)}, which holds {folder}")
            waiting = True
        time.sleep(LOOK)


def _clock(path: Path) -> float:
    """The time by the clock of the file system, which may be another machine's."""
    temp = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    try:
        with temp.open("wb") as file:
            return os.fstat(file.fileno()).st_mtime
    finally:
        temp.unlink(missing_ok=True)


def _named(holder: dict[str, Any]) -> str:
    here = holder.get("machine") == machine()
    return f"process {holder.get('pid', '?')}{'' if here else ' on ' + terminal.visible(str(holder.get('host', '?')))}"
