import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path[:0] = [str(Path(__file__).parent.parent / name) for name in ("serve", "nn", "view")]


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    """Two models behind narrow limits: the address and the scheduler."""
    from http_parts import MODEL, listening
    from serve_parts import served

    with listening(MODEL, served("other/mask"), max_n=4, max_steps=500, max_body=20_000) as made:
        yield made
