"""Processes that the tests start to kill them, or to train with two at once, without a new interpreter for each.

A server that has torch loaded, and has run nothing with it, forks them: a start costs milliseconds instead of seconds
of imports. They are processes like any other, with their own signals, exit codes and threads.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["Child", "script", "torchrun"]

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    ["torch._dynamo", "torch.distributed.fsdp", "torch.distributed.run", "tsdfm.methods.ts_dfm", "tsdfm.distil.run"]
)


class Child:
    """A process that calls `function`, which must be one of a module's; what it says is kept."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        with tempfile.NamedTemporaryFile(delete=False) as said:
            self._said = Path(said.name)
        weakref.finalize(self, self._said.unlink, missing_ok=True)
        self._process = SERVER.Process(target=_speak_into, args=(str(self._said), function, *args))
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float = 1200) -> int:
        """The exit code, in the end. One that hangs is asked to stop, so that nothing outlives the test."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            self._process.terminate()
            self._process.join()
            raise AssertionError(f"it hung: {self.said()}")
        return self._process.exitcode

    def said(self) -> str:
        """Its stdout and stderr so far."""
        return self._said.read_text(encoding="utf-8")


def script(path: str, *words: str) -> Child:
    """Run a Python file as the main program."""
    return Child(_main, path, *words)


def torchrun(path: str, *words: str) -> Child:
    """Run a Python file on two processes of torchrun."""
    return Child(_torchrun, path, *words)


def _speak_into(said: str, function: Callable[..., Any], *args: Any) -> None:
    file = os.open(said, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    function(*args)


def _main(path: str, *words: str) -> None:
    sys.argv = [path, *words]
    sys.path.insert(0, str(Path(path).parent))
    runpy.run_path(path, run_name="__main__")


def _torchrun(path: str, *words: str) -> None:
    from torch.distributed.run import main

    main(["--standalone", "--nproc-per-node", "2", "--run-path", "--start-method", "fork", path, *words])
