"""Rooms import earlier rooms only. Imports inside functions count, and those for type checkers too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import tsdfm

HOME = Path(tsdfm.__file__).parent
ROOMS = (
    "errors",
    "start",  # what lies around a command
    "lazy",  # names that are loaded when they are asked for
    "terminal",  # how much a command says
    "ranges",  # what a number may be
    "machine",  # what memory there is
    "settings",
    "charts",  # SVG, of plain numbers
    "metrics",  # the mathematics of texts: intervals, entropies, perplexities, MAUVE
    "store",  # files, manifests, checkpoints, bundles
    "kernels",  # Triton kernels and their references: no network, no flow
    "corpus",
    "tokens",
    "flow",  # the mathematics, on kernels
    "engine",  # the training loop, fed with rows of tokens
    "nn",
    "judges",
    "compass",
    "teacher",
    "distil",
    "methods",  # one file a method: they are made of the rooms before
    "public",  # other people's checkpoints in and out
    "samples",
    "report",
    "view",
    "serve",  # requests over HTTP, batched by the pass
    "ship",
    "recipes",
    "pipeline",
    "doctor",
    "cli",
    "completion",  # of what the command line takes
)
FRONT = ("__init__", "__main__")  # the doors of the house: they may import any room


def imports(text: str, place: str) -> Iterator[tuple[int, str]]:
    """(line, room) of every import of tsdfm's own in the text of a module, which lies at `place` (flow/jump.py)."""
    package = ("tsdfm", *Path(place).parent.parts)
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*above, *([node.module] if node.module else [])))
            names = [f"{base}.{alias.name}" for alias in node.names] if base == "tsdfm" else [base]
        for parts in (name.split(".") for name in names):
            if parts[0] == "tsdfm" and parts[-1] != "__version__":
                yield node.lineno, parts[1] if len(parts) > 1 else "__init__"


def modules() -> Iterator[tuple[Path, str]]:
    """Every module with its room."""
    for module in sorted(HOME.rglob("*.py")):
        parts = module.relative_to(HOME).with_suffix("").parts
        if parts[0] not in FRONT:
            yield module, parts[0]


def test_every_room_has_its_place() -> None:
    assert {room for _, room in modules()} <= set(ROOMS)


def test_rooms_import_earlier_rooms_only() -> None:
    against = []
    for module, room in modules():
        name = module.relative_to(HOME).as_posix()
        for line, other in imports(module.read_text(encoding="utf-8"), name):
            if other not in ROOMS or ROOMS.index(other) > ROOMS.index(room):
                against.append(f"{name}:{line} imports {other}, which comes after {room}")
    assert not against, "\n".join(against)


def test_a_lazy_and_a_relative_import_are_seen() -> None:
    text = "def f():\n    from tsdfm.nn.ddit import DDiT\n    from ..view import find\n    import tsdfm.cli\n"
    assert list(imports(text, "flow/jump.py")) == [(2, "nn"), (3, "view"), (4, "cli")]
    assert list(imports("from tsdfm import __version__, kernels, load", "flow/jump.py")) == [
        (1, "kernels"),
        (1, "load"),
    ]
