"""What holds for every test: no network, one thread, the same random examples, and Triton's kernels by its interpreter.

Threads and Triton's switch are read when torch and Triton are first imported, so they are set before any test.
"""

import atexit
import contextlib
import gc
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tsdfm.cli import share_cores

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["TERM"] = "xterm"  # what a terminal shows depends on it, and on the next four
for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
    os.environ.pop(name, None)
share_cores()
sys.path.insert(0, str(Path(__file__).parent))  # `training`, which the tests of several rooms use
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

with contextlib.suppress(ImportError):  # tests that draw no examples also run where torch and pytest are all there is
    from hypothesis import Phase, settings

    settings.register_profile("repeat", derandomize=True, max_examples=150, deadline=None, database=None)
    many = int(os.environ.get("EXAMPLES", "2000"))
    quick = set(Phase) - {Phase.explain}  # which traces every line
    settings.register_profile("fuzz", max_examples=many, deadline=None, database=None, print_blob=True, phases=quick)
    settings.load_profile("repeat")  # `make fuzz` asks for the other one


LONG = (  # folders whose tests take more than ten seconds together, the longest first
    *("distil", "methods", "cli", "kernels", "serve", "browser", "pipeline", "examples", "package", "samples"),
    *("tokens", "judges", "report", "teacher", "exact", "engine", "compass", "distributed", "flow", "public", "ship"),
)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is loaded for the whole run is no garbage: nothing looks for it there, now or in any test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        atexit.register(gc.unfreeze)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """What draws without a seed of its own draws the same numbers, whichever tests ran before."""
    random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
    if "triton.runtime.interpreter" in sys.modules and os.environ.get("TRITON_INTERPRET") == "1":
        from quick_interpreter import quicken

        quicken()


def folder_of(nodeid: str) -> str:
    return nodeid.partition("::")[0].rpartition("/")[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The folders that take long come first, so that no worker is left with one of them in the end."""
    place = {f"tests/{name}": number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(folder_of(item.nodeid), len(place)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Workers take whole folders, in their order: the runs that the tests of a folder share are trained once."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFolder(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return folder_of(nodeid)

    config.option.loadscopereorder = False  # by the number of their tests
    return ByFolder(config, log)
