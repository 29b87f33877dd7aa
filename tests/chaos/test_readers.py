"""Every reader of files, on any bytes and on real files with something wrong in them: a UserError, or what it read.

Nothing else may come out, no reader may take a gigabyte, and none more than seconds. `make fuzz` draws more examples;
for 100 000 of them, or as many more as there is time for:

    make fuzz TESTS=tests/chaos/test_readers.py EXAMPLES=2500
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from chaos_files import WRONG, changed, places
from chaos_readers import BESIDE, READERS
from chaos_run import PATIENCE, at_most

from tsdfm.errors import UserError


def whole(content: Any) -> bytes:
    if isinstance(content, bytes):
        return content
    return (content if isinstance(content, str) else json.dumps(content)).encode()


def spoiled(content: Any) -> st.SearchStrategy[bytes]:
    """Any bytes, or the real ones with a value, a byte or a piece that is wrong."""
    data = whole(content)
    cut = st.tuples(st.integers(0, len(data)), st.integers(0, len(data)), st.binary(max_size=12))
    out = st.binary(max_size=200) | cut.map(lambda c: data[: c[0]] + c[2] + data[c[1] :])
    if isinstance(content, (dict, list)):
        anything = st.sampled_from(WRONG) | st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
            lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=4), inside, max_size=3),
            max_leaves=6,
        )
        where = st.sampled_from([*places(content)])
        made = st.tuples(where, anything, st.booleans())
        out |= made.map(lambda m: json.dumps(changed(content, m[0], m[1], drop=m[2])).encode())
    return out


def peak() -> int:
    """The most memory this process has had since the last call, in bytes."""
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    Path("/proc/self/clear_refs").write_text("5")
    return 1024 * int(lines["VmHWM"].split()[0])


@pytest.mark.hypothesis  # so that `make fuzz` takes it
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux to know the memory")
@pytest.mark.parametrize("name", READERS)
def test_a_reader_reads_or_refuses(name: str, tmp_path: Path) -> None:
    place, content, reader = READERS[name]
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    for other, data in BESIDE.get(name, ()):
        (tmp_path / other).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / other).write_bytes(data)
    profile: Any = settings.default

    @settings(max_examples=10 if profile.derandomize else profile.max_examples)
    @given(spoiled(content))
    def reads_or_refuses(data: bytes) -> None:
        path.write_bytes(data)
        with at_most(PATIENCE), contextlib.suppress(UserError):
            reader(path)

    path.write_bytes(whole(content))
    reader(path)
    peak()
    before = peak()
    reads_or_refuses()
    assert peak() - before < 2**30
