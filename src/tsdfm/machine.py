"""What this machine has, so that what it cannot hold is refused before anything is made of it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tsdfm.errors import UserError

LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # a container's own


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
