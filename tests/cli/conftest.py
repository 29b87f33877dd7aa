"""The demo's recipe, made small enough for seconds, and its models, for all tests of the command line."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make demo` leaves, of models that have learned nothing. Not to be changed."""
    from small_demo import pipeline

    out = tmp_path_factory.mktemp("demo") / "run"
    assert pipeline(out) == 0
    return out
