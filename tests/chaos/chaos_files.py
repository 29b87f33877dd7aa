"""Damaged files: every kind of file that tsdfm reads, with keys missing, of wrong types, too deep, too large, cut."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from chaos_run import Case

WRONG: tuple[Any, ...] = (None, "x", -7, [], {}, 10**30, 1.5, True, [[["x"]]], {"x": [3]}, "\x1b[2J", 1e308)
STEP = "checkpoints/step-00000002"
TRAIN = ("--resume", "--loop.steps", "3", "--loop.batch", "4", "--loop.device", "cpu", "--optim.warmup", "1")
TEACH = (
    "teacher",
    "--tokens",
    "tokens",
    "--net.width",
    "16",
    "--net.depth",
    "1",
    "--net.heads",
    "2",
    "--eval-rows",
    "2",
)
SAMPLE = ("--n", "1", "--steps", "1", "--device", "cpu")
READERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "corpus/manifest.json": (
        ("tokens", "--corpus", "corpus", "--out", "new", "--tokenizer", "byte", "--length", "24"),
        ("corpus", "--path", "texts", "--cut", "lines", "--valid", "0.2", "--out", "corpus"),
        ("verify", "corpus"),
    ),
    "tokens/manifest.json": (
        (*TEACH, "--out", "new", "--loop.steps", "1", "--loop.batch", "2", "--loop.device", "cpu", "--eval-times", "1"),
        ("verify", "tokens"),
    ),
    "tokens/tokenizer/tokenizer.json": (("verify", "tokens"),),
    "bpe/tokenizer/tokenizer.json": (("verify", "bpe"),),
    "teacher-uniform/manifest.json": (
        ("view", "teacher-uniform", "--n", "1", "--steps", "1", "--out", "page.html", "--no-open"),
        ("report", "overhead", "teacher-uniform", "--out", "made"),
        ("verify", "teacher-uniform"),
    ),
    f"teacher-uniform/{STEP}/manifest.json": (("sample", "teacher-uniform", *SAMPLE),),
    f"teacher-uniform/{STEP}/state.json": (
        ("sample", "teacher-uniform", *SAMPLE),
        (*TEACH, "--out", "teacher-uniform", "--eval-times", "1", *TRAIN),
    ),
    f"compass-uniform/{STEP}/manifest.json": (
        (
            "compass",
            "validate",
            "compass-uniform",
            "--rows",
            "2",
            "--times",
            "2",
            "--pairs",
            "2",
            "--candidate-rows",
            "1",
        ),
    ),
    "compass-uniform/checkpoints/best.json": (
        ("sample", "teacher-uniform", *SAMPLE, "--guide", "sequence", "--compass", "compass-uniform"),
    ),
    "compass-uniform/validation.json": (("report", "compass", "compass-uniform", "--out", "made"),),
    "fs-dfm-uniform/metrics.jsonl": (("report", "overhead", "fs-dfm-uniform", "--out", "made"),),
    f"judge/{STEP}/manifest.json": (("judge", "score", "texts.jsonl", "--judge", "judge", "--device", "cpu"),),
    "bundle/manifest.json": (
        ("sample", "bundle", *SAMPLE),
        ("card", "bundle"),
        ("verify", "bundle"),
    ),
    "way.json": (("view", "way.json", "--terminal", "--seconds", "0"), ("view", "way.json", "--image", "x.svg")),
    "texts.jsonl": (("judge", "score", "texts.jsonl", "--judge", "judge", "--device", "cpu"),),
    "scores.scores.jsonl": (
        ("judge", "score", "texts.jsonl", "--judge", "judge", "--device", "cpu", "--out", "scores.json"),
    ),
    "report/metrics.json": (("report", "claims", "."), ("report", "page", ".")),
    "report/manifest.json": (("report", "main", "."), ("report", "page", ".")),
    "report/cells/teacher-uniform-2.json": (
        ("report", "main", ".", "--steps", "2", "--teacher-steps", "2", "--samples", "2", "--device", "cpu"),
    ),
    "tokens/.checked.json": (
        ("tokens", "--corpus", "corpus", "--out", "tokens", "--tokenizer", "byte", "--length", "24"),
    ),
    "teacher-uniform/.checked.json": ((*TEACH, "--out", "teacher-uniform", "--eval-times", "1", *TRAIN),),
}
"""The commands that read each kind of file. A name of a cell is cut before its hash."""


def whole(home: Path, name: str) -> Path:
    """The file of that name, which may not be there; a cell's is found by its beginning."""
    path = home / name
    return path if path.exists() else next(path.parent.glob(f"{path.stem}*{path.suffix}"), path)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every key and of the first items of every list."""
    pairs: Any = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, item in pairs:
        yield (*path, key)
        yield from places(item, (*path, key))


def changed(value: Any, path: tuple[Any, ...], new: Any, *, drop: bool = False) -> Any:
    """A copy with another value, or none, at a path."""
    out = copy.deepcopy(value)
    inner = out
    for key in path[:-1]:
        inner = inner[key]
    if drop:
        del inner[path[-1]]
    else:
        inner[path[-1]] = new
    return out


def mutants(text: str, lines: bool) -> Iterator[tuple[str, str]]:
    """(name, text): the JSON of a file, or of the first line of one, with one thing wrong."""
    first, _, rest = text.partition("\n") if lines else (text, "", "")
    value, wrong = json.loads(first), itertools.cycle(WRONG)
    for path in places(value):
        name = ".".join(map(str, path))
        yield f"without {name}", json.dumps(changed(value, path, None, drop=True)) + "\n" + rest
        for _ in range(2):
            new = next(wrong)
            yield f"{name} = {str(new)[:12]!r}", json.dumps(changed(value, path, new)) + "\n" + rest


def broken(text: str) -> Iterator[tuple[str, bytes]]:
    """(name, bytes): what is no JSON, or none of that kind."""
    data = text.encode()
    yield "empty", b""
    yield "cut", data[: len(data) // 2]
    yield "a list", b"[1, 2]"
    yield "a number", b"3"
    yield "null", b"null"
    yield "another object", b'{"x": 1}'
    yield "not UTF-8", b"\xff\xfe" + data
    yield "too deep", b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    yield "a list too deep", b"[" * 100_000 + b"]" * 100_000
    yield "a long number", b'{"step": ' + b"9" * 5000 + b"}"
    yield "not a number", b'{"step": NaN, "format": Infinity}'
    yield "zeros", bytes(64)


def writer(name: str, data: bytes) -> Callable[[Path], object]:
    return lambda home: whole(home, name).write_bytes(data)


def cases(world: Path) -> Iterator[Case]:
    for name, readers in READERS.items():
        if not whole(world, name).exists():
            continue
        text = whole(world, name).read_text(encoding="utf-8")
        found = [*((how, data.encode()) for how, data in mutants(text, name.endswith("jsonl")))]
        for (how, data), words in zip(found, itertools.cycle(readers), strict=False):
            yield Case("schema", f"{name}: {how}, {words[0]}", words, writer(name, data), wanted="either")
        for how, data in broken(text):
            for words in readers:
                yield Case("json", f"{name}: {how}, {words[0]}", words, writer(name, data), wanted="either")
