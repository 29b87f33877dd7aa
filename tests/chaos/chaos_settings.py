"""Mistakes in what is asked for: numbers out of their ranges, paths of nothing, recipes of wrong types, vast sizes."""

from __future__ import annotations

import dataclasses
import itertools
import os
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from chaos_run import Case

from tsdfm.cli import VERBS, load, method_verb
from tsdfm.methods import names
from tsdfm.settings import OutFile, flags_of, hints_of, range_of

FAST = ("--n", "1", "--steps", "1", "--device", "cpu")
NEEDED = dict.fromkeys(("tokens", "corpus"), "tokens")
NEEDED |= dict.fromkeys(("init_from", "teacher", "compass", "student", "runs", "folder", "paths"), "teacher-uniform")
NEEDED |= {
    "out": "new",
    "texts": "texts.jsonl",
    "judge": "judge",
    "name": "x",
    "recipe": "recipe.toml",
    "shell": "bash",
}


def verbs() -> Iterator[tuple[str, Any]]:
    """Every command, and every method's training, with its settings class."""
    for name, verb in VERBS.items():
        if verb.settings:
            yield name, load(verb.settings)
    for name in names():
        yield f"train {name}", load(method_verb(name).settings)


def needed(cls: Any, but: str) -> list[str]:
    """The flags without which a command is refused for another reason."""
    fields = [f for f in dataclasses.fields(cls) if f.default is f.default_factory is dataclasses.MISSING]
    return [w for f in fields if f.name != but for w in (f"--{f.name.replace('_', '-')}", NEEDED.get(f.name, "x"))]


def numbers(kind: Any) -> type | None:
    """int or float, where a setting is a number, may be one, or is a list of them."""
    inside = {kind, *typing.get_args(kind)}
    return int if int in inside else float if float in inside else None


def range_at(cls: Any, dotted: str) -> Any:
    """The range of a setting, which may lie in a group."""
    *groups, last = dotted.split(".")
    for group in groups:
        cls = hints_of(cls)[group]
    return range_of(cls, last)


def outside(kind: type, held_to: Any) -> Iterator[str]:
    """Numbers that no setting of this range takes."""
    yield from ("nan", "x", "9" * 5000) if kind is int else ("nan", "inf", "-inf")
    for end in (held_to.low, held_to.above):
        if end is not None:
            yield f"{end - 1 if end > -(2**60) else end * 4}"
    yield from [f"{held_to.high * 4 + 1}"] if held_to.high is not None else []
    yield from [f"{held_to.below}"] if held_to.below is not None else []


def number_cases() -> Iterator[Case]:
    for name, cls in verbs():
        for flag, kind, *_ in flags_of(cls):
            number = numbers(kind)
            if number is None:
                continue
            wrong = [*dict.fromkeys(outside(number, range_at(cls, flag)))]
            for value in wrong[:1] + wrong[2:]:
                words = [*name.split(), *needed(cls, flag), f"--{flag.replace('_', '-')}={value}"]
                yield Case("numbers", f"{name} {flag}={value[:9]}", tuple(words), needs=("recipe.toml",))


def loop_link(home: Path) -> None:
    (home / "loop").symlink_to("loop")
    (home / "a-file").write_text("x")
    (home / "a-folder").mkdir()
    (home / "deep").symlink_to("loop/x")


PATHS = ("~nosuchuser/x", "n" * 300, "x/" * 3000, "", "loop", "deep/x", "bad\udcff", "a\0b", "a-file/x", "/dev/null/x")


def path_cases() -> Iterator[Case]:
    turns = itertools.cycle(PATHS)
    for name, cls in verbs():
        for flag, kind, *_ in flags_of(cls):
            if Path not in {
                kind,
                *typing.get_args(kind),
                *(b for a in typing.get_args(kind) for b in typing.get_args(a)),
            }:
                continue
            if kind is OutFile or OutFile in typing.get_args(kind):
                words = [*name.split(), *needed(cls, flag), f"--{flag.replace('_', '-')}", "a-folder"]
                yield Case("paths", f"{name} {flag} a folder", tuple(words), loop_link, needs=("recipe.toml",))
            for _ in range(3):
                value = next(turns)
                words = [*name.split(), *needed(cls, flag), f"--{flag.replace('_', '-')}", value]
                shown = value.encode("utf-8", "replace").decode()[:14]
                yield Case("paths", f"{name} {flag} {shown!r}", tuple(words), loop_link, needs=("recipe.toml",))
    for value in PATHS:
        yield Case("paths", f"view {value[:9]!r}", ("view", value, "--no-open"), loop_link, needs=("recipe.toml",))
        if value:
            yield Case("paths", f"verify {value[:9]!r}", ("verify", value), loop_link, needs=("recipe.toml",))
            yield Case("paths", f"pipeline {value[:9]!r}", ("pipeline", value), loop_link, needs=("recipe.toml",))
    yield from strange_names()


def strange_names() -> Iterator[Case]:
    """Files whose names are no text, among the texts of a corpus."""

    def odd(home: Path) -> None:
        with open(os.fsencode(home / "texts") + b"/\xff\xfe.txt", "w") as file:  # noqa: PTH123
            file.write("one\ntwo\nthree\nfour\n")

    words = ("corpus", "--path", "texts", "--cut", "lines", "--out", "new", "--valid", "0.2")
    yield Case("paths", "a file whose name is no text", words, odd, wanted="works", needs=("texts",))
    yield Case(
        "paths", "a text that is a folder", ("corpus", "--path", "texts", "--out", "new"), needs=("texts",),
        harm=lambda home: (home / "texts" / "b.txt").mkdir(), wanted="works",
    )  # fmt: skip


TOML = {
    "not a table": "teacher = 3",
    "a list": "[[teacher]]\nx = 1",
    "models of a list": "models = [1]",
    "a model of text": '[models]\nx = "y"',
    "method a number": "[models.x]\nmethod = 3",
    "method a list": '[models.x]\nmethod = ["dfm"]',
    "like a list": '[models.x]\nmethod = "dfm"\nlike = ["y"]',
    "like itself": '[models.x]\nlike = "x"',
    "like in a circle": '[models.x]\nlike = "y"\n[models.y]\nlike = "x"',
    "use a list": '[models.x]\nmethod = "dfm"\nuse = [1]',
    "use nothing": '[models.x]\nmethod = "dfm"\nuse = ""',
    "sources of lists": 'sources = [["uniform"]]\n[models.x]\nmethod = "dfm"',
    "sources a number": 'sources = 3\n[models.x]\nmethod = "dfm"',
    "a model's sources": '[models.x]\nmethod = "dfm"\nsources = {a = 1}',
    "source a list": "source = [1]",
    "source of numbers": "[source]\nuniform = 3",
    "seed a table": "seed = {a = 1}\n[models.x]\nmethod = 'dfm'",
    "extends a list": 'extends = ["tiny_cpu"]',
    "extends a table": "extends = {a = 1}",
    "extends nothing": 'extends = ""',
    "extends itself": 'extends = "bad.toml"',
    "extends itself by dots": 'extends = "../CASE/bad.toml"',
    "extends itself by a link": 'extends = "link.toml"',
    "a date": "[corpus]\nlimit = 1979-05-27",
    "a time": "seed = 07:32:00",
    "a long number": "seed = " + "9" * 5000,
    "a long hexadecimal number": "seed = 0x" + "f" * 5000,
    "too deep": "a = " + "[" * 50_000 + "]" * 50_000,
    "too deep a name": "a" + ".a" * 50_000 + " = 1",
    "tables too deep": "[" + ".".join("a" * 5000) + "]\nx = 1",
    "a model's table too deep": "[models.x]\nmethod = 'dfm'\n" + ".".join("a" * 3000) + " = 1",
    "not a number": "[corpus]\nvalid = nan\nname = 'world:small'\nlimit = 9",
    "no text": "\xff\0",
    "tables of text": '[report]\ntables = "no-such-table"',
    "a table's settings": '[report]\ntables = ["main"]\nmain = 3',
    "measure a list": "measure = [1]",
    "judges a table": "[measure]\njudges = {a = 1}",
    "a name with a slash": '[models."../x"]\nmethod = "dfm"',
    "a name of dots": '[models.".."]\nmethod = "dfm"',
    "a long name": f'[models.{"n" * 300}]\nmethod = "dfm"\nnet.width = 16',
    "needs a circle": '[models.a]\nmethod="fs-dfm"\ninit_from="b"\n[models.b]\nmethod="fs-dfm"\ninit_from="a"',
    "unknown": "[nonsense]\nx = 1",
    "validate a number": "validate = 3\n[compass]",
}
SETS = ("a", "=", "a=", "teacher", "teacher=3", "teacher.loop=3", "teacher.loop.steps.x=3", ".=1", '""=1', "seed=nan")
SETS += ("extends=bad.toml", "extends=", "models.x.y=1", "corpus.sources=3", "corpus.sources=[1]", "a=" + "[" * 9999)


def recipe_cases() -> Iterator[Case]:
    def written(text: str) -> Callable[[Path], object]:
        def write(home: Path) -> None:
            (home / "bad.toml").write_text(text.replace("CASE", home.name), encoding="latin-1")
            (home / "link.toml").symlink_to("bad.toml")

        return write

    for name, text in TOML.items():
        for words in (("pipeline", "bad.toml", "--out", "made"), ("doctor", "bad.toml")):
            wanted = "either" if words[0] == "doctor" else "refused"  # which reads of a recipe what it needs
            yield Case("recipes", f"{words[0]}: {name}", words, written(text), needs=("recipe.toml",), wanted=wanted)
        words = ("teacher", "--recipe", "bad.toml", "--tokens", "tokens", "--out", "made")
        yield Case("recipes", f"teacher: {name}", words, written(text), needs=("recipe.toml",), wanted="either")
    for pair in SETS:
        words = ("pipeline", "recipe.toml", "--out", "made", "--set", pair)
        yield Case("recipes", f"--set {pair[:20]}", words, needs=("recipe.toml",))


def size_cases() -> Iterator[Case]:
    """What no machine has is refused before it is made; what would take for ever says so."""
    train = ("teacher", "--tokens", "tokens", "--out", "new", "--loop.device", "cpu", "--loop.steps", "1")
    huge = {
        "width": ("--net.width", "100000", "--net.heads", "1"),
        "depth": ("--net.depth", "1000000"),
        "depth that is allowed": ("--net.depth", "1000", "--net.width", "16384"),
        "mlp": ("--net.mlp-ratio", "1000000"),
        "cond": ("--net.cond", "1000000000"),
        "positions": ("--net.positions", "1000000000"),
        "batch": ("--loop.batch", "1000000000"),
        "batch that is allowed": ("--loop.batch", str(2**20), "--net.width", "16", "--net.heads", "1"),
        "steps": ("--loop.steps", str(10**12)),
        "eval times": ("--eval-times", str(10**18), "--net.width", "16"),
    }
    for name, words in huge.items():
        yield Case("sizes", f"teacher, {name}", (*train, *words), needs=("tokens",))
    text = ("tokens", "--corpus", "corpus", "--out", "new")
    for more in (("--vocab-size", str(10**12)), ("--vocab-size", str(2**63 - 1)), ("--length", str(10**12))):
        yield Case("sizes", f"tokens {more}", (*text, *more), needs=("corpus",))
    yield Case("sizes", "tokens --shard-rows", (*text, "--shard-rows", str(10**12)), needs=("corpus",))
    yield Case("sizes", "tokens --workers", (*text, "--workers", str(10**6)), needs=("corpus",))
    sample = ("sample", "teacher-uniform", "--device", "cpu")
    for more in (("--n", str(10**12)), ("--steps", str(10**12)), ("--n", str(10**9), "--steps", "1")):
        yield Case("sizes", f"sample {more}", (*sample, *more), needs=("teacher-uniform",))
    yield Case(
        "sizes",
        "view --steps",
        ("view", "teacher-uniform", "--steps", str(10**12), "--no-open"),
        needs=("teacher-uniform",),
    )
    yield Case("sizes", "view --n", ("view", "teacher-uniform", "--n", str(10**12)), needs=("teacher-uniform",))
    yield Case(
        "sizes",
        "report --samples",
        ("report", "main", ".", "--samples", str(10**12), "--steps", "2", "--device", "cpu"),
    )
    for key, value in (("depth", 10**6), ("width", 10**9), ("depth", 1000), ("hidden", 2**40), ("heads", 10**6)):
        yield Case(
            "sizes", f"a manifest with {key} {value}", (*sample, "--n", "1", "--steps", "1"),
            shape_of("teacher-uniform/checkpoints/step-00000002/manifest.json", key, value), needs=("teacher-uniform",),
        )  # fmt: skip
    yield Case("sizes", "a shard of 10^12 rows", (*train, "--net.width", "16"), rows_of(10**12), needs=("tokens",))


def shape_of(name: str, key: str, value: int) -> Callable[[Path], object]:
    import json

    def harm(home: Path) -> None:
        path = home / name
        found = json.loads(path.read_text())
        found["model"]["shape"] |= {key: value} | (
            {"width": 16384, "heads": 1, "hidden": 65536} if value == 1000 else {}
        )
        path.write_text(json.dumps(found))

    return harm


def rows_of(rows: int) -> Callable[[Path], object]:
    import json

    def harm(home: Path) -> None:
        path = home / "tokens" / "manifest.json"
        found = json.loads(path.read_text())
        split = found["splits"]["train"]
        split["shards"][0]["rows"], split["rows"] = rows, split["rows"] + rows - split["shards"][0]["rows"]
        path.write_text(json.dumps(found))

    return harm


def id_cases() -> Iterator[Case]:
    """Token ids outside the vocabulary, in rows whose hashes are right."""
    import hashlib
    import json

    def spoiled(split: str, value: int) -> Callable[[Path], object]:
        def harm(home: Path) -> None:
            path = home / "tokens" / "manifest.json"
            found = json.loads(path.read_text())
            for shard in found["splits"][split]["shards"]:
                file = home / "tokens" / shard["file"]
                rows = np.fromfile(file, dtype="<u2")
                rows[::3] = value
                rows.tofile(file)
                shard["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
            path.write_text(json.dumps(found))

        return harm

    small = ("--net.width", "16", "--net.depth", "1", "--net.heads", "2", "--loop.steps", "1", "--loop.batch", "4")
    small += ("--loop.device", "cpu", "--eval-rows", "2", "--optim.warmup", "1")
    compass = ("--teacher", "teacher-uniform", "--negatives", "1")
    for split, value in (("train", 257), ("train", 65535), ("valid", 300)):
        for name, more in (("teacher", ()), ("compass", compass), ("judge train", ())):
            words = (*name.split(), "--tokens", "tokens", "--out", "new", *small, *more)
            yield Case(
                "ids", f"{name}: {value} in {split}", words, spoiled(split, value), needs=("tokens", "teacher-uniform"),
                begins=True,
            )  # fmt: skip
        words = ("report", "measure", ".", "--samples", "2", "--steps", "2", "--teacher-steps", "2", "--device", "cpu")
        if split == "valid":
            yield Case(
                "ids", "report: a token of no piece", (*words, "--out", "made"), spoiled(split, value),
                needs=("tokens", "teacher-uniform"), begins=True,
            )  # fmt: skip


def cases(world: Path) -> Iterator[Case]:
    yield from number_cases()
    yield from path_cases()
    yield from recipe_cases()
    yield from size_cases()
    yield from id_cases()
