"""Token shards that others have made, taken where they lie: what numbers a file holds, from which byte on.

.ds             datatrove and nanotron: uint16, or uint32 above 65,536 tokens; NAME.ds.index holds the end of every
                document as uint64, NAME.ds.metadata a line "tokenizer|bytes a token" and one with the number of tokens
.bin and .idx   Megatron: the .idx holds "MMIDIDX\\0\\0", version 1 (uint64), a type code (uint8), the numbers of
                sequences and of document marks (uint64), lengths (int32), pointers in bytes (int64), marks (int64)
.bin            llm.c: a header of 256 int32 (20240520, 1, number of tokens) and uint16; or (20240801, 7, …) and uint32
.bin            nanoGPT: uint16 alone, or uint32 above 65,536 tokens

All numbers are little-endian. A file that is cut short, or is not what its name says, is refused in one line.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsdfm.errors import UserError
from tsdfm.store.manifest import NAME as MANIFEST
from tsdfm.store.manifest import spelled

MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
MEGATRON_HEAD = struct.Struct("<9sQBQQ")
MEGATRON_TYPES = {1: "<u1", 3: "<u2", 4: "<u4", 5: "<u8", 8: "<u2"}  # a signed id ≥ 0 is the unsigned one of its size
LLMC_HEAD = 256 * 4
LLMC_TYPES = {(20240520, 1): "<u2", (20240801, 7): "<u4"}


@dataclass(frozen=True)
class Stream:
    """`count` tokens of type `dtype` in a file, from byte `offset` to its end."""

    path: Path
    dtype: np.dtype[Any]
    offset: int
    count: int

    def open(self) -> NDArray[Any]:
        """The tokens [count], memory-mapped."""
        return np.memmap(self.path, self.dtype, mode="r", offset=self.offset, shape=(self.count,))


def find_streams(place: Path, vocab_size: int) -> list[Stream]:
    """The tokens of a file, of a folder's files in the order of their names, or of a pattern (`train_*.bin`)."""
    if place.is_dir():
        if (place / MANIFEST).is_file():
            raise UserError(f"{place} is a folder that `tokens` made: give it to a training as --tokens")
        inside = [path for path in place.rglob("*") if not any(p[0] == "." for p in path.relative_to(place).parts)]
    else:
        inside = [place] if place.is_file() else _matching(place)
    files = sorted(path for path in inside if path.suffix in (".ds", ".bin") and path.is_file())
    if not files:
        raise UserError(f"no token shards at {place}: give a .ds or .bin file, a folder of them, or a pattern")
    if len({path.suffix for path in files}) > 1:
        raise UserError(f"{place} has .ds and .bin files: give those of one kind, by a pattern")
    streams = [stream for path in files if (stream := read_stream(path, vocab_size)).count]  # a task may find no text
    if not streams:
        raise UserError(f"the token shards at {place} hold no tokens: give others")
    if other := next((s for s in streams if s.dtype != streams[0].dtype), None):
        raise UserError(
            f"{other.path} holds {other.dtype} and {streams[0].path} {streams[0].dtype}: give shards of one type"
        )
    return streams


def _matching(pattern: Path) -> list[Path]:
    """The files of a folder whose names match a pattern; none if it is no pattern."""
    try:
        return [*pattern.parent.glob(pattern.name)]
    except (ValueError, NotImplementedError, OSError):
        return []


def read_stream(path: Path, vocab_size: int) -> Stream:
    """The tokens of one file, by its name's ending and its first bytes."""
    try:
        if spelled(path) != str(path):
            raise UserError(f"the name of {spelled(path)} is not UTF-8, and cannot be noted: rename it")
        if path.suffix == ".ds":
            return _datatrove(path, vocab_size)
        if path.with_suffix(".idx").is_file():
            return _megatron(path)
        return _plain(path, vocab_size)
    except OSError as problem:
        raise UserError(f"cannot read {path} ({problem.strerror})") from None


def _fitting(vocab_size: int) -> np.dtype[Any]:
    """The smallest type that datatrove and nanoGPT use for a vocabulary."""
    return np.dtype("<u2") if vocab_size <= 2**16 else np.dtype("<u4")


def _whole(path: Path, dtype: np.dtype[Any], offset: int, count: int) -> Stream:
    """A stream that ends where its file does."""
    found, wanted = path.stat().st_size, offset + count * dtype.itemsize
    if found != wanted:
        raise UserError(f"{path} is damaged ({found} bytes instead of {wanted}): fetch or make it again")
    return Stream(path, dtype, offset, count)


def _datatrove(path: Path, vocab_size: int) -> Stream:
    index, about = path.with_name(f"{path.name}.index"), path.with_name(f"{path.name}.metadata")
    dtype, counts = _fitting(vocab_size), []
    if path.name.endswith("_unshuffled.ds") and [*path.parent.glob(path.name.replace("unshuffled", "*_shuffled"))]:
        raise UserError(f"{path} is left from a task that was cut off: run datatrove's pipeline again, or remove it")
    if about.is_file():
        lines = about.read_text(encoding="utf-8", errors="replace").splitlines()
        size = lines[0].rpartition("|")[2] if lines else ""
        if len(lines) < 2 or size not in ("2", "4") or not lines[1].isdecimal() or len(lines[1]) > 18:
            raise UserError(f"{about} is no metadata of datatrove's: make the shards again")
        dtype = np.dtype(f"<u{size}")
        counts.append(int(lines[1]))
    if index.is_file():
        if index.stat().st_size % 8:
            raise UserError(f"{index} is damaged (it is not whole numbers of 8 bytes): make the shards again")
        ends = np.fromfile(index, "<u8")
        if (ends[1:] < ends[:-1]).any():
            raise UserError(f"{index} is damaged (a document ends before it begins): make the shards again")
        counts.append(int(ends[-1]) if len(ends) else 0)
    if not counts:
        raise UserError(f"{path} has neither {index.name} nor {about.name} beside it, and cannot be checked")
    if len(set(counts)) > 1:
        raise UserError(f"{index} and {about.name} do not agree ({counts[1]} and {counts[0]} tokens): make them again")
    return _whole(path, dtype, 0, counts[0])


def _megatron(path: Path) -> Stream:
    index = path.with_suffix(".idx")
    with index.open("rb") as file:
        head = file.read(MEGATRON_HEAD.size)
    if len(head) < MEGATRON_HEAD.size or not head.startswith(MEGATRON_MAGIC):
        raise UserError(
            f"{index} is no index of Megatron's (its first bytes are not MMIDIDX): rename it, or make it again"
        )
    _, version, code, sequences, documents = MEGATRON_HEAD.unpack(head)
    if version != 1 or code not in MEGATRON_TYPES:
        raise UserError(f"{index} has version {version} and type {code}: version 1 and whole numbers are read")
    size, least = index.stat().st_size, MEGATRON_HEAD.size + 12 * sequences + 8 * documents
    if size not in (least, least + sequences):  # the latter has a mode for each sequence
        raise UserError(f"{index} is damaged ({size} bytes instead of {least}): fetch or make it again")
    dtype = np.dtype(MEGATRON_TYPES[code])
    raw = np.memmap(index, "u1", mode="r", offset=MEGATRON_HEAD.size) if sequences else np.empty(0, "u1")
    lengths = raw[: 4 * sequences].view("<i4")
    pointers = raw[4 * sequences : 12 * sequences].view("<i8")
    ends = np.cumsum(lengths, dtype=np.int64)
    if (lengths < 0).any() or (pointers != (ends - lengths) * dtype.itemsize).any():
        raise UserError(f"{index} is not of sequences one after another: write it anew in their order")
    return _whole(path, dtype, 0, int(ends[-1]) if sequences else 0)


def _plain(path: Path, vocab_size: int) -> Stream:
    """llm.c's file, by the first number of its header, or nanoGPT's, which has none."""
    with path.open("rb") as file:
        head = np.frombuffer(file.read(LLMC_HEAD), "u1")
    if len(head) == LLMC_HEAD:
        magic, version, count, *rest = head.view("<i4").tolist()
        if found := LLMC_TYPES.get((magic, version)):
            return _whole(path, np.dtype(found), LLMC_HEAD, count)
        if not any(rest):  # a header, but another: 253 zeros are no text
            known = " or ".join(f"{number} version {of}" for number, of in LLMC_TYPES)
            raise UserError(f"{path} has a header with magic number {magic} version {version}, not {known}")
    dtype = _fitting(vocab_size)
    if path.stat().st_size % dtype.itemsize:
        raise UserError(
            f"{path} is damaged (it is not whole numbers of {dtype.itemsize} bytes): fetch or make it again"
        )
    return _whole(path, dtype, 0, path.stat().st_size // dtype.itemsize)
