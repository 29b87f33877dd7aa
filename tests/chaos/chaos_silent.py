"""What would go wrong in silence: changed bytes, names of nothing, a folder in use, outputs over artifacts."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from chaos_files import SAMPLE, STEP, TEACH, TRAIN
from chaos_run import Case

from tsdfm.machine import machine, started

NEW = ("--loop.steps", "1", "--loop.batch", "2", "--loop.device", "cpu", "--eval-times", "1", "--optim.warmup", "1")
AGAIN = (*TEACH, "--out", "teacher-uniform", "--eval-times", "1", *TRAIN)
BYTES = {
    "corpus/train.jsonl.gz": ("tokens", "--corpus", "corpus", "--out", "new", "--tokenizer", "byte"),
    "tokens/train-00000.bin": (*TEACH, "--out", "new", *NEW),
    "tokens/train-00006.bin": (*TEACH, "--out", "new", *NEW),
    f"teacher-uniform/{STEP}/ema.safetensors": ("sample", "teacher-uniform", *SAMPLE),
    f"teacher-uniform/{STEP}/model.safetensors": AGAIN,
    f"teacher-uniform/{STEP}/optim.safetensors": AGAIN,
    f"compass-uniform/{STEP}/ema.safetensors": ("verify", "compass-uniform"),
    "bundle/student.safetensors": ("sample", "bundle", *SAMPLE),
    "bundle/teacher.safetensors": ("sample", "bundle/teacher", *SAMPLE),
    "bundle/compass.safetensors": ("sample", "bundle", *SAMPLE, "--guide", "sequence"),
}
"""The commands that read each kind of bytes."""


def spoiled(data: bytes) -> Iterator[tuple[str, bytes]]:
    """(name, bytes): one bit, the beginning, the end, the size."""
    for place in (0, 7, 9, len(data) // 2, len(data) - 1):
        changed = bytearray(data)
        changed[place] ^= 1
        yield f"a bit at {place}", bytes(changed)
    yield "cut", data[:-1]
    yield "longer", data + b"\0"
    yield "empty", b""
    yield "zeros", bytes(len(data))


def quietly(name: str, data: bytes) -> Callable[[Path], object]:
    """Write without a trace in the file's times."""

    def harm(home: Path) -> None:
        path = home / name
        before = path.stat()
        path.write_bytes(data)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    return harm


def byte_cases(world: Path) -> Iterator[Case]:
    for name, words in BYTES.items():
        if (world / name).exists():
            for how, data in spoiled((world / name).read_bytes()):
                yield Case("bytes", f"{name}: {how}, {words[0]}", words, quietly(name, data))


def forged(change: Callable[[dict[str, Any], bytes], bytes]) -> Callable[[Path], object]:
    """A safetensors file with another header, whose hash is written down as right."""

    def harm(home: Path) -> None:
        folder = home / "teacher-uniform" / STEP
        path, state = folder / "ema.safetensors", folder / "state.json"
        data = path.read_bytes()
        (size,) = struct.unpack("<Q", data[:8])
        path.write_bytes(change(json.loads(data[8 : 8 + size]), data[8 + size :]))
        about = json.loads(state.read_text())
        hashed = hashlib.sha256(path.read_bytes()).hexdigest()
        about["files"]["ema.safetensors"] = {"sha256": hashed, "bytes": path.stat().st_size}
        state.write_text(json.dumps(about))

    return harm


def packed(header: Any, body: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def forged_cases() -> Iterator[Case]:
    def one(change: dict[str, Any]) -> Callable[[dict[str, Any], bytes], bytes]:
        def make(header: dict[str, Any], body: bytes) -> bytes:
            name = next(key for key in header if key != "__metadata__")
            return packed(header | {name: header[name] | change}, body)

        return make

    tricks: dict[str, Callable[[dict[str, Any], bytes], bytes]] = {
        "offsets beyond the end": one({"data_offsets": [0, 2**62]}),
        "offsets backwards": one({"data_offsets": [8, 0]}),
        "a shape of billions": one({"shape": [2**31, 2**31]}),
        "a negative shape": one({"shape": [-1]}),
        "an unknown type": one({"dtype": "F1"}),
        "another type": one({"dtype": "I32"}),
        "no tensors": lambda header, body: packed({}, b""),
        "another name": lambda header, body: packed({f"x.{k}": v for k, v in header.items()}, body),
        "a header too long": lambda header, body: struct.pack("<Q", 2**60) + b"{}",
        "a header that is no JSON": lambda header, body: packed(b"\xff" * 64, body),
        "a header too deep": lambda header, body: packed(b"[" * 50_000 + b"]" * 50_000, body),
        "a pickle": lambda header, body: b"\x80\x04cos\nsystem\n(S'touch pwned'\ntR.",
        "no header": lambda header, body: b"\x01",
    }
    for name, change in tricks.items():
        yield Case("forged", f"safetensors with {name}", ("sample", "teacher-uniform", *SAMPLE), forged(change))
        words = ("ship", "teacher-uniform", "--name", "x", "--out", "made")
        yield Case("forged", f"ship: safetensors with {name}", words, forged(change))


def in_use(place: str) -> Callable[[Path], object]:
    """A folder that, by its lock, the parent of this process has in use."""

    def harm(home: Path) -> None:
        about = {"host": "x", "machine": machine(), "pid": os.getppid(), "started": started(os.getppid())}
        (home / place).parent.mkdir(exist_ok=True, parents=True)
        (home / place).write_text(json.dumps({**about, "since": "now", "token": "t"}))

    return harm


def name_cases() -> Iterator[Case]:
    def load(**given: str) -> Callable[[Path], object]:
        def call(home: Path) -> object:
            import tsdfm

            return tsdfm.load(home / "teacher-uniform", "cpu", **given)

        return call

    for given in ({"precision": "fp8"}, {"choose": "worst"}, {"which": "average"}):
        yield Case("names", f"load({given})", call=load(**given))
    yield Case("names", "loop.best", (*TEACH, "--out", "new", *NEW, "--loop.best", "no-such-metric"))
    yield Case("names", "loop.best on resume", (*AGAIN, "--loop.best", "elbow"))
    for words in ("--device tpu", "--jump leap", "--guide sideways", "--weights heavy", "--checkpoint oldest"):
        yield Case("names", words, ("sample", "teacher-uniform", "--n", "1", "--steps", "1", *words.split()))


def lost_cases() -> Iterator[Case]:
    manifest, weights = "teacher-uniform/manifest.json", f"teacher-uniform/{STEP}/ema.safetensors"
    sample = ("sample", "teacher-uniform", *SAMPLE)
    for path in (manifest, weights, "tokens/train-00000.bin", "corpus/train.jsonl.gz", "tokens"):
        for flag in ("--out", "--save-trajectory"):
            yield Case("lost", f"sample {flag} {path}", (*sample, flag, path))
        yield Case("lost", f"view --out {path}", ("view", "way.json", "--no-open", "--out", path))
        yield Case("lost", f"view --image {path}", ("view", "way.json", "--image", path))
        score = ("judge", "score", "texts.jsonl", "--judge", "judge", "--device", "cpu")
        yield Case("lost", f"judge score --out {path}", (*score, "--out", path))
        yield Case("lost", f"judge score --cache {path}", (*score, "--cache", path))
    fewer = tuple("1" if word == "3" else word for word in AGAIN)
    yield Case("lost", "resume with fewer steps", fewer)
    ship = ("ship", "fs-dfm-uniform", "--name", "mine", "--out", "bundle")
    yield Case(
        "lost", "ship over a file of the user's", ship, lambda home: (home / "bundle/notes.txt").write_text("mine")
    )
    yield Case("lost", "ship over a folder of the user's", (*ship[:-1], "texts"))
    yield Case("lost", "a folder in use: teacher", AGAIN, in_use("teacher-uniform/.lock"))
    text = ("tokens", "--corpus", "corpus", "--out", "new", "--tokenizer", "byte")
    yield Case("lost", "a folder in use: tokens", text, in_use("new/.lock"))
    corpus = ("corpus", "--path", "texts", "--cut", "lines", "--out", "new")
    yield Case("lost", "a folder in use: corpus", corpus, in_use(".new.lock"))
    for name in ("corpus", "tokens", "teacher-uniform"):
        yield Case("lost", f"corpus over {name}", ("corpus", "--path", "texts", "--out", name))
        yield Case("lost", f"tokens over {name}", ("tokens", "--corpus", "corpus", "--out", name, "--length", "9"))
    yield Case("lost", "teacher over tokens", (*TEACH, "--out", "corpus/train.jsonl.gz", *NEW))


def cases(world: Path) -> Iterator[Case]:
    yield from byte_cases(world)
    yield from forged_cases()
    yield from name_cases()
    yield from lost_cases()
