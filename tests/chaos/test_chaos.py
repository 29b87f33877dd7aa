"""The short form of the campaign (`make chaos`): a few cases of every root, on the smallest world."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import chaos_files
import chaos_outside
import chaos_settings
import chaos_silent
import chaos_world
from chaos_outside import Process, run_process
from chaos_run import Case, judged, try_case

FEW = {"numbers": 45, "paths": 17, "recipes": 9, "sizes": 5, "ids": 5, "schema": 97, "json": 13}
FEW |= {"bytes": 9, "forged": 9, "names": 5, "lost": 7, "streams": 9, "folders": 3, "world": 5}
"""Every so many of a root's cases are tried here; those with a clock in them are not."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chaos_world.make(tmp_path_factory.mktemp("chaos") / "world", short=True)


def few(world: Path) -> list[Case]:
    modules = (chaos_settings, chaos_silent, chaos_files, chaos_outside)
    every = (case for module in modules for case in module.cases(world))
    roots = itertools.groupby(every, key=lambda case: case.root)
    return [case for root, some in roots if root in FEW for case in list(some)[1 :: FEW[root]]]


def test_a_few_of_every_root(world: Path, tmp_path: Path) -> None:
    """All at once, as they share the world; what does not end well is listed."""
    cases = [case for case in few(world) if all((world / name).exists() for name in case.needs)]
    assert {case.root for case in cases} == FEW.keys()
    assert len(cases) > 100
    bad = []
    for number, case in enumerate(cases):
        if isinstance(case, Process):
            place = chaos_world.copied(world, tmp_path / str(number))
            outcome = run_process(case, place)
        else:
            outcome = try_case(case, world, tmp_path / "place")
        if outcome.kind != "well":
            bad.append(f"{outcome.kind}: {case.root}, {case.name}: {outcome.said.strip()[-300:]}")
    assert not bad, "\n".join(bad)


def test_the_campaign_can_fail(world: Path, tmp_path: Path) -> None:
    def raises(_: Path) -> None:
        raise KeyError("x")

    def loses(place: Path) -> None:
        from tsdfm.errors import UserError

        (place / "recipe.toml").unlink()
        raise UserError("no")

    def kind(case: Case) -> str:
        return try_case(case, world, tmp_path / "place").kind.split()[0]

    assert kind(Case("x", "raises", call=raises)) == "traceback"
    assert kind(Case("x", "silent", call=lambda _: None)) == "silent"
    assert kind(Case("x", "loses", call=loses)) == "lost"
    assert kind(Case("x", "refused", ("teacher",), wanted="works")) == "refused"
    assert judged(Case("x", "wordy"), 2, "one\ntwo\n") == "wordy"
    assert judged(Case("x", "the net"), 1, "tsdfm: this should not have happened\n") == "traceback"
