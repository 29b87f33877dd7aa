"""Settings of a small packing, and one that dies on its way, for a process of its own."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from tsdfm.tokens import TokensSettings
from tsdfm.tokens import pack as pack_module
from tsdfm.tokens import run as run_module


def settings(corpus: Path, out: Path, **kwargs: Any) -> TokensSettings:
    return TokensSettings(
        corpus=corpus, out=out, **{"vocab_size": 300, "length": 16, "shard_rows": 8, "workers": 2} | kwargs
    )


def packs(corpus: Path, out: Path, point: str, count: int, layout: Any) -> None:
    """Pack, in a process of its own, up to the `count`-th arrival at a point, where it dies."""
    calls = 0

    def dying(name: str, before: bool) -> None:
        home = run_module if name == "write_manifest" else pack_module
        original = getattr(home, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == count and before:
                if name == "_write_shard":
                    args[0].with_suffix(".part").write_bytes(b"torn in the middle")
                os.kill(os.getpid(), signal.SIGKILL)
            result = original(*args, **kwargs)
            if calls == count:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(home, name, wrapped)

    if point == "slow":
        original = pack_module._write_shard

        def slow(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            time.sleep(0.02 if calls < 20 else 3600)  # it is killed before it is done, however busy the machine is
            return original(*args)

        pack_module._write_shard = slow
    else:
        points = {
            "torn": ("_write_shard", True),
            "renamed": ("sync_folder", False),
            "recorded": ("write_json", False),
            "unrecorded": ("write_json", True),
            "finishing": ("write_manifest", True),
        }
        dying(*points[point])
    run_module.run(settings(corpus, out, layout=layout))
