"""What is built and off by default, switched on for a benchmark: constants of modules, by a short name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.harness import Step
from tsdfm.errors import UserError
from tsdfm.settings import nearest

SWITCHES = {
    "record": ("tsdfm.student.recorded", "RECORD", True),
}


def switched(build: Callable[[], Step], words: str) -> tuple[Step, Step]:
    """A step built and run with some constants at other values (names joined by +), and the one that it runs."""
    chosen = [SWITCHES[word] for word in words.split("+")]

    def on(work: Callable[[], Any]) -> Any:
        modules = [importlib.import_module(place) for place, _, _ in chosen]
        before = [getattr(module, name) for module, (_, name, _) in zip(modules, chosen, strict=True)]
        for module, (_, name, value) in zip(modules, chosen, strict=True):
            setattr(module, name, value)
        try:
            return work()
        finally:
            for module, (_, name, _), value in zip(modules, chosen, before, strict=True):
                setattr(module, name, value)

    inner: Step = on(build)

    def step(n: int) -> object:
        return on(partial(inner, n))

    return step, inner


def check_switches(words: tuple[str, ...]) -> None:
    """Refuse names that are none."""
    for word in (name for joined in words for name in joined.split("+")):
        if word not in SWITCHES:
            raise UserError(f"no switch is called {word!r}{nearest(word, SWITCHES)}")
