"""Weights & Biases: every value, one run of W&B for a run that was resumed, and nothing unless asked."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from toy_training import train

from tsdfm.engine.distributed import Processes
from tsdfm.engine.log import read_metrics
from tsdfm.engine.wandb import LESS
from tsdfm.errors import UserError

ALONE = Processes()
VARIABLES = ("WANDB_PROJECT", "WANDB_NAME", "WANDB_DIR", "WANDB_RUN_ID")


class Recorder(types.ModuleType):
    """What of `wandb` is used, writing down what it is told."""

    Error = RuntimeError

    def __init__(self) -> None:
        super().__init__("wandb")
        self.begun: list[dict[str, Any]] = []
        self.told: list[tuple[int, dict[str, float]]] = []
        self.ended: list[int] = []
        self.id = "abc"

    def Settings(self, **given: Any) -> dict[str, Any]:
        return given

    def init(self, **given: Any) -> Recorder:
        self.begun.append(given)
        return self

    def log(self, values: dict[str, float], step: int) -> None:
        self.told.append((step, values))

    def finish(self, exit_code: int) -> None:
        self.ended.append(exit_code)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    made = Recorder()
    monkeypatch.setitem(sys.modules, "wandb", made)
    return made


def test_without_the_flag_it_is_not_even_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    train(tmp_path / "run", ALONE)
    assert not list(tmp_path.glob("run/wandb*"))
    with pytest.raises(UserError, match=r"pip install 'tsdfm\[wandb\]'"):
        train(tmp_path / "other", ALONE, loop={"wandb": True})


def test_it_is_told_what_the_metrics_file_says(tmp_path: Path, recorder: Recorder) -> None:
    train(tmp_path / "run", ALONE, loop={"wandb": True})
    (begun,) = recorder.begun
    assert (begun["project"], begun["name"], begun["dir"]) == ("tsdfm", "run", str(tmp_path / "run"))
    assert begun["config"]["steps"] == 6
    assert "id" not in begun
    assert begun["settings"] == LESS
    lines = read_metrics(tmp_path / "run")
    assert recorder.told == [
        (line["step"], {f"{line['kind']}/{name}": line[name] for name in line if name not in ("step", "kind")})
        for line in lines
    ]
    assert {"train/loss", "train/lr", "eval/elbo"} <= {name for _, values in recorder.told for name in values}
    assert recorder.ended == [0]


def test_a_resumed_run_goes_on_with_the_same_run_there(tmp_path: Path, recorder: Recorder) -> None:
    with pytest.raises(UserError, match="gradient"):
        train(tmp_path, ALONE, loop={"wandb": True, "max_bad": 1}, task={"poison": (4,)})
    assert json.loads((tmp_path / "wandb.json").read_text()) == {"id": "abc"}
    train(tmp_path, ALONE, loop={"wandb": True}, resume=True)
    assert [(begun.get("id"), begun.get("resume")) for begun in recorder.begun] == [(None, None), ("abc", "allow")]
    assert recorder.ended == [1, 0]


def test_its_variables_win_and_its_refusal_is_one_line(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    train(tmp_path / "run", ALONE, loop={"wandb": True})
    assert "project" not in recorder.begun[0]

    def refuse(**_: Any) -> None:
        raise recorder.Error("no API key\nmore")

    monkeypatch.setattr(recorder, "init", refuse)
    with pytest.raises(UserError, match=r"does not start \(no API key\): `wandb login`, or WANDB_MODE=offline"):
        train(tmp_path / "other", ALONE, loop={"wandb": True})


def test_the_real_one_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes into the run's folder, and a resumed run has the same id."""
    pytest.importorskip("wandb", reason="wandb, of the extra of that name, is not installed")
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    train(tmp_path / "run", ALONE, loop={"wandb": True, "steps": 4})
    run_id = json.loads((tmp_path / "run" / "wandb.json").read_text())["id"]
    (kept,) = (tmp_path / "run" / "wandb").glob(f"offline-run-*/run-{run_id}.wandb")
    assert b"train/loss" in kept.read_bytes()
    assert not list(kept.parent.glob("files/*"))  # no code, no list of packages, nothing that was printed
    train(tmp_path / "run", ALONE, loop={"wandb": True}, resume=True)
    assert len(list((tmp_path / "run" / "wandb").glob(f"offline-run-*/run-{run_id}.wandb"))) == 2
