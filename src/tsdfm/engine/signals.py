"""Ctrl-C and SIGTERM ask a run to finish its step, save and leave."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType
from typing import Any

ASKED = (signal.SIGINT, signal.SIGTERM)
ECHO, ECHO_OF_TORCHRUN = 0.2, 1.0  # seconds in which a second Ctrl-C is the first one again


class Stopped(SystemExit):
    """A run that a signal ended, after it saved. The exit code is the shell's: 130 for Ctrl-C, 143 for SIGTERM."""


class Signals:
    """While in use, a signal only sets `number`, and says so at once; a second Ctrl-C interrupts.

    One Ctrl-C can arrive twice, from the terminal and from a launcher such as torchrun: an echo is not a second one.
    """

    def __init__(self, answer: str = "stopping after this step") -> None:
        self.number: int | None = None
        self._answer = answer
        self._when = 0.0
        self._echo = ECHO_OF_TORCHRUN if "RANK" in os.environ else ECHO
        self._before: dict[int, Any] = {}

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.number is None:
            self.number, self._when = number, time.monotonic()
            if os.environ.get("RANK", "0") == "0":  # not by print: a handler may interrupt one
                os.write(2, f"{self._answer}; Ctrl-C again ends now\n".encode())
        elif number == signal.SIGINT and time.monotonic() - self._when > self._echo:
            raise KeyboardInterrupt

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():  # Python lets no other thread set handlers
            self._before = {number: signal.signal(number, self._take) for number in ASKED}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
