"""This machine: its memory, so that what it cannot hold is refused before it is made; its name; its processes."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

from tsdfm.errors import UserError

SPARE_FILES = 512  # for all else that a process opens
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # a container's own

TRIM, MMAP, MMAPS = -1, -3, -4  # mallopt's names: M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX
KEEPING = {MMAPS: 0, TRIM: -1}  # no piece is mapped by itself, and the heap's end is never given back
USUAL = {MMAPS: 1 << 16, MMAP: 32 << 20, TRIM: 64 << 20}  # where glibc's own rule ends among large pieces


def memory() -> int:
    """Bytes of memory that this process may use at most: the machine's, or fewer where it runs in a container."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for place in LIMITS:
        with contextlib.suppress(OSError, ValueError):  # not there, or `max`
            found.append(int(Path(place).read_text(encoding="ascii")))
    return min(found)


def check_memory(needed: float, what: str, remedy: str) -> None:
    """Refuse what needs more bytes than there are."""
    if needed > (room := memory()):
        raise UserError(f"{what} needs {amount(needed)} of memory, and this machine has {amount(room)}: {remedy}")


def amount(size: float) -> str:
    """`3.2 GiB`."""
    for unit, name in ((2**50, "PiB"), (2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB")):
        if size >= unit:
            return f"{size / unit:,.1f} {name}"
    return f"{size:,.0f} bytes"


@contextlib.contextmanager
def keeping_memory() -> Iterator[None]:
    """Inside the block what is freed stays with the process for the next use; at its end it goes back to the system.

    Else glibc returns every large tensor when it is freed, and the kernel hands it out again as new pages, each zeroed
    and faulted in: a sixth of a training step's time. What the user set himself (`MALLOC_…`) stays, and other C
    libraries are left alone. It works in the main thread, whose heap may grow; those of other threads may not.
    """
    chosen = any(name.startswith("MALLOC_") for name in os.environ) or "malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if chosen or not has_glibc():
        yield
        return
    import ctypes

    libc = ctypes.CDLL(None)
    for name, value in KEEPING.items():
        libc.mallopt(name, value)
    try:
        yield
    finally:
        for name, value in USUAL.items():
            libc.mallopt(name, value)
        libc.malloc_trim(0)


def has_glibc() -> bool:
    """Is this process's C library GNU's?"""
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, OSError, ValueError):  # Windows has no such question, others no such answer
        return False


def allow_files(count: int) -> None:
    """Let this process hold `count` more files open, as far as the system does: the usual limit is 1,024 in all."""
    try:
        import resource
    except ImportError:  # not on this system, and no such limit either
        return
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    now, most = (math.inf if limit == resource.RLIM_INFINITY else limit for limit in limits)
    opened = Path("/proc/self/fd")
    needed = count + (len([*opened.iterdir()]) if opened.is_dir() else 0)
    if needed > most:
        raise UserError(f"{count:,} files are to be open at once, and the system allows {most:,}: make larger shards")
    if needed + SPARE_FILES > now:
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(min(needed + SPARE_FILES, most)), limits[1]))


def machine() -> str:
    """Where process numbers mean the same: this machine since it was started, and this container's own numbers."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:  # not Linux
        return f"{socket.gethostname()} {uuid.getnode():x}"


def started(pid: int) -> int | None:
    """When a process began, in ticks since the machine did; None where that is not known, −1 where it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return -1 if fields[0] in "ZX" else int(fields[19])


def alive(pid: int) -> bool:
    """Is there a process of this number?"""
    if pid < 1:  # which would mean several
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True  # another user's
    except (ProcessLookupError, OverflowError):
        return False
    return started(pid) != -1
