"""The trajectory file: what comes back, what states it tells, and what a damaged one says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_nets import save_run, tiny_spec, tiny_velocity
from view_parts import save_compass

from tsdfm.cli import main
from tsdfm.errors import UserError
from tsdfm.samples.model import TextModel
from tsdfm.samples.trajectory import Change, Recorder, Row, Trajectory
from tsdfm.samples.written import Samples
from tsdfm.tokens.tokenizer import ByteTokenizer

HAND = Trajectory(
    method="teacher",
    source="mask",
    steps=2,
    nfe=2,
    seed=7,
    vocab=257,
    mask=257,
    end_of_text=256,
    pieces={97: "a", 98: "é\n"},
    rows=(
        Row((257, 97, 257), (1,), (Change(0.0, 0.5, ((0, 98),), 0.25), Change(0.5, 0.5, ((0, 97), (2, 98)), 0.5))),
        Row((97, 97, 97), (), (Change(0.0, 0.5, (), 0.125), Change(0.5, 0.5, (), 1.0))),
    ),
)


def sampled(source: str, **given: Any) -> Samples:
    model = TextModel(tiny_velocity(tiny_spec(source=source)), ByteTokenizer(), "teacher")
    return model.sample(n=3, steps=4, seed=2, trajectory=True, **given)


def test_states_by_hand() -> None:
    states = list(HAND.rows[0].states())
    assert [state for state, _ in states] == [(257, 97, 257), (98, 97, 257), (97, 97, 98)]
    assert [changed for _, changed in states] == [frozenset(), frozenset({0}), frozenset({0, 2})]
    assert [state for state, _ in HAND.rows[1].states()] == [(97, 97, 97)] * 3


def test_marks_by_hand() -> None:
    """Noise that is written is new; what is written again is replaced; a given place is never noise."""
    first, second, third = HAND.rows[0].replay(257)
    assert (first.time, first.new, first.replaced, first.noise) == (0.0, set(), set(), {0, 2})
    assert (second.time, second.new, second.replaced, second.noise) == (0.5, {0}, set(), {2})
    assert (third.time, third.new, third.replaced, third.noise) == (1.0, {2}, {0}, set())
    assert [state.confidence for state in (first, second, third)] == [None, 0.25, 0.5]
    assert [state.tokens for state in (first, second, third)] == [state for state, _ in HAND.rows[0].states()]


def test_a_revision_of_the_finished_text_is_a_state_of_its_own() -> None:
    changes = [(0.0, 0.75, ((1, 4),)), (0.75, 0.25, ((1, 5),)), (0.75, 0.25, ((1, 6),)), (0.75, 0.25, ())]
    row = Row((0, 1), (0,), tuple(Change(t, h, each, 0.5) for t, h, each in changes))
    seen = list(row.replay())
    assert [state.tokens[1] for state in seen] == [1, 4, 5, 6, 6]
    assert [state.time for state in seen] == pytest.approx([0.0, 0.75, 1.0, 1.00001, 1.00002], abs=1e-9)


def test_a_token_that_is_masked_again_is_replaced_and_then_new() -> None:
    steps = tuple(Change(i / 3, 1 / 3, ((0, token),), 0.5) for i, token in enumerate((5, 9, 6)))
    states = list(Row((9, 7), (1,), steps).replay(9))
    assert [sorted(state.new) for state in states] == [[], [0], [], [0]]
    assert [sorted(state.replaced) for state in states] == [[], [], [0], []]
    assert [sorted(state.noise) for state in states] == [[0], [], [0], []]
    uniform = list(Row((9, 7), (1,), steps).replay(None))  # there 9 is a token as any other
    assert [sorted(state.replaced) for state in uniform] == [[], [], [0], [0]]


def test_round_trip(tmp_path: Path) -> None:
    path = HAND.save(tmp_path / "deep" / "way.json")
    assert Trajectory.load(path) == HAND
    uniform = Trajectory(**{**vars(HAND), "source": "uniform", "mask": None})
    assert Trajectory.load(uniform.save(path)) == uniform
    assert [left.name for left in path.parent.iterdir()] == ["way.json"]
    plain = json.loads(path.read_text())
    assert [step["replaced"] for step in plain["rows"][0]["steps"]] == [[], [0]]
    assert not {"guide", "compass"} & plain.keys()
    assert "energy" not in path.read_text()


def test_energies_guide_and_compass_come_back(tmp_path: Path) -> None:
    rows = (Row((97,), (), (Change(0.0, 1.0, (), 0.5, -1.25), Change(1.0, 0.0, (), 0.5, 0.0)), 3.5),)
    way = Trajectory(**{**vars(HAND), "rows": rows, "guide": "token", "compass": "feed"})
    assert Trajectory.load(way.save(tmp_path / "way.json")) == way
    assert [state.energy for state in way.rows[0].replay()] == [3.5, -1.25, 0.0]


def test_energies_are_those_of_the_states() -> None:
    class Sum:
        """An energy that can be checked by hand."""

        sha256 = "0123456789abcdef0123"

        def energy(self, tokens: torch.Tensor) -> torch.Tensor:
            return tokens.double().sum(1) / 8

    plain = sampled("mask", batch=2).trajectory
    made = sampled("mask", batch=2, compass=Sum()).trajectory
    assert (plain.compass, made.compass, made.guide) == (None, "0123456789abcdef", None)
    assert [list(row.states()) for row in made.rows] == [list(row.states()) for row in plain.rows]
    for row in made.rows:
        assert [state.energy for state in row.replay()] == [sum(state) / 8 for state, _ in row.states()]
    assert all(state.energy is None for row in plain.rows for state in row.replay())


def test_the_guide_s_compass_scores_too() -> None:
    from tsdfm.samples.guide import Guide

    class Flat:
        def energy(self, tokens: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(tokens))

    samples = sampled("mask", guide=Guide("sequence", Flat()))
    assert (samples.trajectory.guide, samples.trajectory.compass) == ("sequence", "unnamed")
    assert {state.energy for row in samples.trajectory.rows for state in row.replay()} == {0.0}
    calls = sampled("mask", guide=Guide("sequence", Flat()), batch=3).compass_calls
    assert calls == samples.compass_calls  # recording is not counted


def test_the_command_records_energies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_run(tmp_path / "run", tiny_spec())
    save_compass(tmp_path / "compass", tiny_spec())
    words = [
        "sample",
        str(tmp_path / "run"),
        "--n",
        "2",
        "--steps",
        "2",
        "--save-trajectory",
        str(tmp_path / "way.json"),
    ]
    assert main([*words, "--compass", str(tmp_path / "compass")]) == 0
    scored = Trajectory.load(tmp_path / "way.json")
    assert all(state.energy is not None for row in scored.rows for state in row.replay())
    assert "compass calls" not in capsys.readouterr().err
    assert main(words) == 0
    assert Trajectory.load(tmp_path / "way.json").rows[0].energy is None
    save_compass(tmp_path / "other", tiny_spec(source="uniform"))
    assert main([*words, "--compass", str(tmp_path / "other")]) == 2
    assert "do not belong together" in capsys.readouterr().err
    assert main(["sample", str(tmp_path / "run"), "--compass", str(tmp_path / "compass")]) == 2
    assert "scores nothing without --save-trajectory or --live" in capsys.readouterr().err


@pytest.mark.parametrize("source", ["uniform", "mask"])
@pytest.mark.parametrize("batch", [None, 2])
def test_states_end_in_the_sample(tmp_path: Path, source: str, batch: int | None) -> None:
    samples = sampled(source, prefix="Mi", batch=batch)
    way = Trajectory.load(samples.trajectory.save(tmp_path / "way.json"))
    assert (way.method, way.source, way.steps, way.nfe, way.seed, way.vocab) == ("teacher", source, 4, 4, 2, 257)
    assert way.mask == (257 if source == "mask" else None)
    assert len(way.rows) == 3
    for row, tokens in zip(way.rows, samples.tokens.tolist(), strict=True):
        states = [state for state, _ in row.states()]
        assert len(states) == 5
        assert list(states[-1]) == tokens
        assert row.given == (0, 1, 2)
        assert all(state[:3] == (256, *b"Mi") for state in states)
        if source == "mask":
            assert set(states[0][3:]) == {257}
        assert [step.t for step in row.steps] == [0.0, 0.25, 0.5, 0.75]
        assert all(step.h == 0.25 and 1 / 257 <= step.confidence <= 1 for step in row.steps)
        for before, (after, changed), step in zip(states, list(row.states())[1:], row.steps, strict=False):
            assert {i for i in range(20) if before[i] != after[i]} == changed == {place for place, _ in step.changes}
    held = {token for row in way.rows for state, _ in row.states() for token in state if token < 257}
    assert set(way.pieces) == held  # enough to show every state, and nothing else
    assert way.pieces[ord("M")] == "M"


def test_a_trajectory_changes_nothing() -> None:
    watched, plain = sampled("mask"), TextModel(tiny_velocity(tiny_spec()), ByteTokenizer(), "teacher").sample(3, 4, 2)
    assert torch.equal(watched.tokens, plain.tokens)
    assert plain.trajectory is None


def test_confidence_is_the_mean_of_the_largest_probabilities() -> None:
    from tsdfm.flow import Step

    logits = torch.tensor([[[0.0, 0.0], [3.0, 0.0]], [[9.0, 9.0], [0.0, 1.0]]])
    recorder, state = Recorder(), torch.zeros(2, 2, dtype=torch.int64)
    recorder(Step(index=0, t=0.0, h=1.0, before=state, after=state + 1, logits=logits))
    rows = recorder.rows(None)
    sure = [torch.tensor([x]).sigmoid().item() for x in (3.0, 1.0)]
    assert rows[0].steps[0].confidence == pytest.approx((0.5 + sure[0]) / 2)
    assert rows[1].steps[0].confidence == pytest.approx((0.5 + sure[1]) / 2)
    assert rows[0].steps[0].changes == ((0, 1), (1, 1))
    assert Recorder().rows(None) == []


def damage(**given: Any) -> Any:
    plain = {
        "format": 1,
        **{name: getattr(HAND, name) for name in ("method", "source", "seed", "vocab", "mask")},
        "steps": 1,
        "nfe": 1,
        "end_of_text": 256,
        "pieces": {"97": "a"},
        "rows": [{"given": [0], "start": [97, 97], "steps": [{"t": 0, "h": 1, "changes": [[1, 97]], "confidence": 1}]}],
    }
    return {**plain, **given}


def row(**given: Any) -> list[Any]:
    return [{**damage()["rows"][0], **given}]


def step(**given: Any) -> list[Any]:
    return row(steps=[{**damage()["rows"][0]["steps"][0], **given}])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is damaged"),
        ('{"format": 1', "is damaged"),
        ("[1, 2]", "is damaged"),
        (json.dumps(damage(format=2)), "no trajectory this version reads"),
        ("{}", "no trajectory this version reads"),
        (json.dumps({"format": 1}), "is damaged .*method"),
        (json.dumps(damage(pieces=[])), "is damaged"),
        (json.dumps(damage(pieces={"x": "a"})), "is damaged"),
        (json.dumps(damage(rows=3)), "is damaged"),
        (json.dumps(damage(rows=[[]])), "is damaged"),
        (json.dumps(damage(rows=row(start="ab"))), "is damaged"),
        (json.dumps(damage(rows=row(given=[2]))), "is damaged .*outside the 2"),
        (json.dumps(damage(rows=step(changes=[[5, 97]]))), "is damaged .*outside the 2"),
        (json.dumps(damage(rows=step(changes=[[-1, 97]]))), "is damaged .*must be from 0"),
        (json.dumps(damage(rows=step(changes=[[1, 2, 3]]))), "is damaged"),
        (json.dumps(damage(rows=step(changes=None))), "is damaged"),
        (json.dumps(damage(rows=step(energy="low"))), "is damaged"),
        (json.dumps(damage(rows=row(energy=[1]))), "is damaged"),
        (json.dumps(damage(rows=step(confidence=None))), "is damaged"),
        (json.dumps(damage(steps=2)), "is damaged .*2 steps"),
    ],
)
def test_a_damaged_file(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "way.json"
    path.write_text(text)
    with pytest.raises(UserError, match=said) as caught:
        Trajectory.load(path)
    assert str(path) in str(caught.value)


def test_the_undamaged_one_is_read(tmp_path: Path) -> None:
    path = tmp_path / "way.json"
    path.write_text(json.dumps(damage()))
    assert Trajectory.load(path).rows[0].start == (97, 97)  # a file of the first version: no energy, no `replaced`
    with pytest.raises(UserError, match="no file at"):
        Trajectory.load(tmp_path / "none.json")
