"""What torchrun says of the processes it started."""

from __future__ import annotations

import os
import re

from tsdfm.errors import UserError
from tsdfm.ranges import shown


def torchrun_says() -> tuple[int, int, int]:
    """(rank, processes, rank on this machine) by the environment; what makes no sense is refused in one line."""
    found = {}
    for name, usual, least in (("WORLD_SIZE", "1", 1), ("RANK", "0", 0), ("LOCAL_RANK", "0", 0)):
        text = os.environ.get(name, usual)
        if not re.fullmatch(r"\d{1,6}", text) or int(text) < least:
            raise UserError(f"the environment says {name}={shown(text)}: start processes by torchrun, or unset it")
        found[name] = int(text)
    rank, size = found["RANK"], found["WORLD_SIZE"]
    if size > 1:
        missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
        if missing or rank >= size:
            why = f"{missing[0]} is not set" if missing else f"RANK is {rank}"
            raise UserError(
                f"the environment says WORLD_SIZE={size}, and {why}: start by torchrun, or unset WORLD_SIZE"
            )
    return rank if size > 1 else 0, size, found["LOCAL_RANK"]
