"""Four processes begin, three go on: rows and noise are those of one, to the bit.

`python -m benchmarks processes` does the same with 64 and 48.
"""

import json
from pathlib import Path

import pytest
from benchmarks.processes import ProcessBenchmark, compare, job, launch, make_rows, plan

from processes import SERVER
from tsdfm.errors import UserError


def test_four_processes_begin_and_three_go_on(tmp_path: Path) -> None:
    settings = ProcessBenchmark(first=4, then=3, batch=12, steps=4)
    tokens = make_rows(tmp_path, settings.seed)
    for name, world, steps in plan(settings):
        launch(world, job(settings, tokens, tmp_path / name, steps), SERVER)
    found = compare(settings, tmp_path)
    assert found.rows == 48
    assert found.loss < 1e-5
    assert found.weight < 1e-4
    note = next((tmp_path / "many-notes").glob("4-3-*.jsonl"))
    first, *rest = note.read_text().splitlines()
    other = [*json.loads(first)[:4], "0" * 24]
    note.write_text("\n".join([json.dumps(other), *rest]) + "\n")
    with pytest.raises(UserError, match="rows or noise differ: 2 of 48 rows"):
        compare(settings, tmp_path)
