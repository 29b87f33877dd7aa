"""The loader's benchmark, small: it measures the real loader, and notices a step that is another when it is resumed."""

import queue
import threading
from pathlib import Path

import pytest
from benchmarks.loader import LoaderBenchmark, make, read

from tsdfm.tokens.loader import Loader


def test_the_benchmark_measures_and_compares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = LoaderBenchmark(tokens=40_000, shards=3, length=64, batch=4, seconds=0.05)
    folder = make(settings, tmp_path)

    def answer() -> float | str:
        found: queue.Queue[float | str] = queue.Queue()
        read(settings, folder, 1, 2, threading.Barrier(1), found)
        return found.get_nowait()

    speed = answer()
    assert isinstance(speed, float)
    assert speed > 0
    honest, calls = Loader.indices, []
    monkeypatch.setattr(Loader, "indices", lambda self, step: calls.append(step) or honest(self, step + len(calls)))
    assert "is another when it is resumed" in str(answer())
