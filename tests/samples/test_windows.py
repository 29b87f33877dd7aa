"""Texts longer than the model: each window has what came before as its prefix; passes are counted, ways are kept."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_nets import save_run, tiny_spec, tiny_velocity

from tsdfm.cli import main
from tsdfm.errors import UserError
from tsdfm.flow import RowNoise, grid, solve
from tsdfm.samples.model import TextModel
from tsdfm.samples.trajectory import Trajectory
from tsdfm.samples.windows import STREAM, windows_of
from tsdfm.samples.written import Moment
from tsdfm.tokens.tokenizer import ByteTokenizer

BYTES = ByteTokenizer()
END = BYTES.end_of_text
LENGTH = 20  # of the tiny models
every_source = pytest.mark.parametrize("source", ["uniform", "mask"])


def tiny_model(**spec: Any) -> TextModel:
    return TextModel(tiny_velocity(tiny_spec(**spec)), BYTES, "teacher")


def test_the_windows_of_a_text() -> None:
    made = windows_of(tiny_spec(anchor=1), 33, 6)
    assert [window.new for window in made] == [20, 6, 6, 1]
    assert [window.written.tolist()[-1] for window in made] == [19, 25, 31, 32]
    assert all(len(window.columns) == LENGTH and window.columns[0] == 0 for window in made)
    assert made[1].columns.tolist() == [0, *range(7, 26)]
    assert [window.new for window in windows_of(tiny_spec(anchor=0), 40, None)] == [20, 10, 10]
    assert len(windows_of(tiny_spec(), None, None)) == len(windows_of(tiny_spec(), 20, None)) == 1


@every_source
def test_each_window_goes_on_from_what_is_there(source: str) -> None:
    """The first is the text that the model writes anyway; the second is a generation with a prefix, by other noise."""
    model, numbers = tiny_model(source=source, anchor=1), torch.arange(3)
    long = model.sample(n=3, steps=4, seed=5, length=29, stride=9)
    assert long.tokens.shape == (3, 29)
    assert torch.equal(long.tokens[:, :LENGTH], model.sample(n=3, steps=4, seed=5).tokens)
    noise = RowNoise(5, numbers, STREAM + 1)
    x_0 = model.velocity.source.draw((3, LENGTH), noise, torch.device("cpu"))
    seen = torch.cat([long.tokens[:, :1], long.tokens[:, 10:20], x_0[:, 11:]], 1)
    held = torch.arange(LENGTH) < 11
    by_hand = solve(model.velocity, seen, grid(4), model.jump("auto"), noise, given=held, given_tokens=seen).tokens
    assert torch.equal(long.tokens[:, 20:], by_hand[:, 11:])
    assert (long.nfe, len(long.texts)) == (8, 3)


@every_source
def test_a_long_text_does_not_know_its_batch(source: str) -> None:
    model, calls = tiny_model(source=source), list[torch.Tensor]()
    model.velocity.net.embedding.register_forward_hook(lambda _, args, __: calls.append(args[0]))
    whole = model.sample(n=5, steps=3, seed=3, length=50, stride=8)
    assert whole.nfe == 3 * 5 == len(calls)
    assert all(bool((x[:, 0] == END).all()) for x in calls)  # the anchor stands in every window
    for batch in (1, 2):
        assert torch.equal(model.sample(n=5, steps=3, seed=3, length=50, stride=8, batch=batch).tokens, whole.tokens)
    alone = model.sample(n=1, steps=3, seed=3, length=50, stride=8, first=4)
    assert torch.equal(alone.tokens[0], whole.tokens[4])
    shorter = model.sample(n=5, steps=3, seed=3, length=36, stride=8)
    assert torch.equal(shorter.tokens, whole.tokens[:, :36])
    assert int(whole.tokens.max()) < 257


@every_source
def test_what_is_given_may_lie_anywhere(source: str) -> None:
    model = tiny_model(source=source)
    prefix = "a story that is longer than the model"
    made = model.sample(n=2, steps=3, length=60, stride=10, prefix=prefix)
    assert all(text.startswith(prefix) for text in made.texts)
    assert made.nfe == 3 * 3  # 38 tokens are given: of five windows, those that end at 20 and 30 write nothing
    filled = model.sample(n=2, steps=3, length=40, stride=10, infill="A{24}B{3}C")
    for row in filled.tokens.tolist():
        assert (row[1], row[26], row[30]) == (*b"ABC",)


@every_source
def test_the_way_of_a_long_text(source: str, tmp_path: Path) -> None:
    model, moments = tiny_model(source=source), list[Moment]()
    asked = {"n": 2, "steps": 4, "length": 34, "stride": 7, "prefix": "Mia"}
    made = model.sample(**asked, trajectory=True)  # type: ignore[arg-type]
    way = made.trajectory
    assert way is not None
    way.save(tmp_path / "way.json")
    kept = Trajectory.load(tmp_path / "way.json")
    assert [list(row.states()) for row in kept.rows] == [list(row.states()) for row in way.rows]
    assert (way.steps, way.nfe) == (12, 12)
    for row, tokens in zip(way.rows, made.tokens.tolist(), strict=True):
        states = list(row.replay(way.mask))
        assert list(states[-1].tokens) == tokens
        assert all(a.time < b.time for a, b in itertools.pairwise(states))
        assert states[-1].time == pytest.approx(1.0)
        assert all(max(state.new | state.replaced, default=0) < 20 for state in states[:5])  # the first window's
        assert row.given == tuple(range(4))
    watched = model.sample(**asked, on_pass=moments.append)  # type: ignore[arg-type]
    assert torch.equal(watched.tokens, made.tokens)
    assert [(m.passes, m.of) for m in moments] == [(k, 12) for k in range(1, 13)]
    assert torch.equal(moments[-1].tokens, made.tokens)


def test_what_is_refused() -> None:
    model = tiny_model()
    for given, said in (
        ({"length": 12}, "too short"),
        ({"stride": 5}, "give a length too"),
        ({"length": 40, "stride": 0}, "at least 1"),
        ({"length": 40, "stride": 20}, "at most the 19"),
        ({"length": 40, "infill": "A{1-2}B"}, "gaps of several lengths"),
        ({"length": 40, "prefix": "A", "cfg": 1.0}, "cfg: for texts of the model's 20 tokens"),
    ):
        with pytest.raises(UserError, match=said):
            model.sample(**given)  # type: ignore[arg-type]


def test_by_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_run(tmp_path / "run", tiny_spec())
    BYTES.save(tmp_path / "run" / "tokenizer")
    words = ["sample", str(tmp_path / "run"), "--n", "1", "--steps", "2", "--length", "30", "--stride", "10"]
    assert main([*words, "--out", str(tmp_path / "texts.jsonl")]) == 0
    assert "4 network passes" in capsys.readouterr().err
    assert main([*words[:-3], "12"]) == 2
    assert "too short" in capsys.readouterr().err
