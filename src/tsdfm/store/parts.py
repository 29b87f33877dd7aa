"""A stage in parts, each a process of its own on any machine that sees the folder, in any order, at any time.

    part = part_of("3/8")                      # the fourth of eight
    with mine(out, part):                      # no other process makes this part
        …                                      # the part's files, and last its record, OUT/part-00003-of-00008.json
    join(out, part, Kind, make)                # the part that finds all others done calls make(records)

What a part holds is a stretch of the whole: part 0 the beginning, part n − 1 the end. The whole is its parts one after
another, and therefore the same whatever n was.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tsdfm import terminal
from tsdfm.errors import UserError
from tsdfm.store.lock import Lock, clear, held
from tsdfm.store.manifest import NAME as MANIFEST
from tsdfm.store.schema import read_record


@dataclass(frozen=True)
class Part:
    """Part `index` of `count`, counted from 0."""

    index: int
    count: int

    @property
    def name(self) -> str:
        """`00003-of-00008`."""
        return f"{self.index:05d}-of-{self.count:05d}"

    @property
    def record(self) -> str:
        """The file that says what the part has made."""
        return f"part-{self.name}.json"

    def of(self, total: int) -> range:
        """This part's stretch of `total` things: ⌊total·i/n⌋ to ⌊total·(i+1)/n⌋."""
        return range(total * self.index // self.count, total * (self.index + 1) // self.count)

    def share(self, sizes: Sequence[int]) -> range:
        """This part's stretch of things of these sizes, so that parts are about equal: by where their middles lie."""
        total, before, owners = sum(sizes) or 1, 0, []
        for size in sizes:
            owners.append(min(self.count - 1, (2 * before + size) * self.count // (2 * total)))
            before += size
        first = sum(owner < self.index for owner in owners)
        return range(first, first + owners.count(self.index))


def part_of(text: str | None, where: str = "part") -> Part | None:
    """The part that `i/n` names; none where there is no text, which means the whole in one process."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,5})/(\d{1,5})", text.strip())
    if found is None:
        raise UserError(f"{where} takes i/n, such as 0/8 for the first of eight, not {terminal.visible(text)!r}")
    index, count = int(found[1]), int(found[2])
    if not index < count:
        raise UserError(f"{where} counts from 0: of {count} parts the last is {max(count - 1, 0)}/{max(count, 1)}")
    return Part(index, count)


@contextlib.contextmanager
def mine(out: Path, part: Part) -> Iterator[Lock]:
    """Hold one part of a folder, which must not hold parts of another number."""
    with held(out, out / f".part-{part.name}.lock") as lock:
        for other in out.glob("part-*-of-*.json"):
            if not other.name.endswith(f"-of-{part.count:05d}.json"):
                count = int(other.stem[-5:]) if other.stem[-5:].isdigit() else "?"
                raise UserError(f"{out} holds parts of {count}: give --part i/{count}, or remove it, or another --out")
        yield lock


def join(out: Path, part: Part, kind: Any, make: Callable[[list[Any]], None]) -> bool:
    """If every part is done, call `make` with their records, in order; it writes the manifest. Is there one now?

    `kind` is the `TypedDict` of a record.
    """
    with held(out, out / ".join.lock", wait=True):
        if (out / MANIFEST).is_file():
            return True
        paths = [out / Part(index, part.count).record for index in range(part.count)]
        records = [read_record(path, kind) for path in paths if path.is_file()]
        left = part.count - sum(bool(record.get("done")) for record in records)
        if left:
            terminal.say(f"part {part.index}/{part.count} is done; {left} of {part.count} are not yet: {out}")
            return False
        if len({record.get("key") for record in records}) > 1:
            raise UserError(
                f"the parts in {out} were made with different settings or texts: remove it, and start again"
            )
        make(records)
        tidy(out)
    return True


def tidy(out: Path) -> None:
    """Remove the records of parts that are joined, and the locks of those that were killed before they could."""
    for record in out.glob("part-*-of-*.json"):
        record.unlink(missing_ok=True)
    for file in out.glob(".*lock"):
        clear(out, file)
