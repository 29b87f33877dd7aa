"""Rows with a prompt in every distiller and in the compass: no network ever sees the prompt changed, or learns it."""

from __future__ import annotations

import copy
import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tsdfm
from training import many_step
from tsdfm.compass.network import EnergyNet
from tsdfm.compass.run import run as train_compass
from tsdfm.compass.settings import CompassSettings, ValidateSettings
from tsdfm.compass.validate import validate
from tsdfm.corpus.run import run as make_corpus
from tsdfm.corpus.settings import CorpusSettings
from tsdfm.distil.parts import States
from tsdfm.distil.run import begin, spec_for, start_of
from tsdfm.engine.distributed import Processes
from tsdfm.engine.task import Context
from tsdfm.flow import RowNoise
from tsdfm.flow.jump import JUMPS, jump_from
from tsdfm.flow.schedule import schedule_from
from tsdfm.flow.source import source_from
from tsdfm.judges.settings import JudgeTrainSettings
from tsdfm.judges.train import run as train_judge
from tsdfm.methods import brought_jumps, method, names
from tsdfm.nn.ddit import DDiT
from tsdfm.nn.velocity import load_velocity
from tsdfm.settings import build
from tsdfm.store.checkpoint import load_weights
from tsdfm.tokens.loader import Batch
from tsdfm.tokens.rows import TokenRows, count_tokens
from tsdfm.tokens.run import run as make_tokens
from tsdfm.tokens.settings import TokensSettings

NET: dict[str, Any] = {"width": 32, "depth": 1, "heads": 2, "cond": 16, "dropout": 0.0}
OWN: dict[str, dict[str, Any]] = {  # what a method needs to show all it does in a few steps
    "ts-dfm": {"navigate": {"tau": 0.0, "k": 2}, "level_weights": [0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0], "share": 0.5},
    "fs-dfm": {"level_weights": [0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0], "share": 0.5},
    "sdtt": {"start_steps": 8, "round": 2},
    "duo-dcd": {"start_steps": 8, "round": 2},
    "t3d": {"traces": 8, "trace_steps": 3, "round": 2, "hide": "random"},
    "idlm": {"auxiliary": {"alone": 0, "warmup": 1}, "form": "mix", "pull": 0.5, "width": 0.1, "tilt": 0.5,
             "passes": [2, 4], "pass_weights": [1, 1]},
    "di4c": {"mixture": 2, "gap": 0.25},
    "reinforce": {"passes": [2, 3], "first": 1, "alone": 0, "texts": 2, "entropy": 0.5, "width": 0.1},
}  # fmt: skip
DISTILLERS = [name for name in names() if not method(name).many_step]
EVERY = [(name, source) for name in DISTILLERS for source in method(name).sources]


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sums as prompts of several lengths, with answers."""
    home = tmp_path_factory.mktemp("asked")
    lines = [{"ask": f"{a} and {b} make", "say": f"{a + b}, of course."} for a in range(14) for b in range(14)]
    (home / "sums.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = make_corpus(
        CorpusSettings(out=home / "corpus", path=home / "sums.jsonl", field="say", prompt="ask", valid=0.2)
    )
    return make_tokens(TokensSettings(corpus=made, out=home / "tokens", vocab_size=300, length=24, layout="prompt"))


@pytest.fixture(scope="module")
def models(tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A teacher of each source, and the compasses that go with them."""
    home, found = tmp_path_factory.mktemp("models"), dict[str, Path]()
    for source in ("uniform", "mask"):
        found[source] = many_step("dfm", tokens, home / source, steps=12, source=source)
        found[f"compass-{source}"] = train_compass(compass_settings(tokens, found[source], home / f"compass-{source}"))
    found["judge"] = train_judge(judge_settings(tokens, home / "judge"))
    return found


def judge_settings(tokens: Path, out: Path) -> JudgeTrainSettings:
    loop = {"steps": 3, "batch": 8, "device": "cpu", "eval_every": 0, "save_every": 0}
    return build(JudgeTrainSettings, {"tokens": tokens, "out": out, "loop": loop, "net": NET})


def compass_settings(tokens: Path, teacher: Path, out: Path, objective: str = "nce") -> CompassSettings:
    loop = {"steps": 3, "batch": 8, "device": "cpu", "eval_every": 3, "save_every": 0}
    given = {"loop": loop, "eval_rows": 8, "negatives": 8, "net": NET, "objective": objective}
    return build(CompassSettings, {"tokens": tokens, "teacher": teacher, "out": out, **given})


class Prompts:
    """The prompts [n] of a tokens folder, anchors included: how much of a row is one of them."""

    def __init__(self, tokens: Path) -> None:
        self.known = set[tuple[int, ...]]()
        for split in ("train", "valid"):
            rows = TokenRows(tokens, split)
            every = range(len(rows))
            pairs = zip(rows.take(every), rows.given(every), strict=True)
            self.known |= {tuple(row[held].tolist()) for row, held in pairs}
        self.sizes = sorted({len(prompt) for prompt in self.known})

    def given(self, x: Tensor) -> Tensor:
        """Which positions [B, L] of states hold a row's prompt; it must be there, whole."""
        counts = [next((n for n in self.sizes if tuple(row[:n]) in self.known), 0) for row in x.tolist()]
        assert 0 not in counts, "a state without its prompt"
        return torch.arange(x.shape[1]) < torch.tensor(counts)[:, None]


class Spy:
    """Looks at every state that a network is shown and at the gradient of what it answers there."""

    def __init__(self, prompts: Prompts) -> None:
        self.prompts, self.seen, self.slopes, self.free = prompts, 0, 0.0, 0.0

    def look(self, x: Tensor, out: Tensor) -> None:
        given = self.prompts.given(x)
        self.seen += len(x)
        if out.requires_grad and out.ndim == 3:
            out.register_hook(lambda slope: self.weigh(slope, given))

    def weigh(self, slope: Tensor, given: Tensor) -> None:
        self.slopes = max(self.slopes, float(slope[given].abs().max()))
        self.free = max(self.free, float(slope[~given].abs().max()))


@pytest.fixture
def spy(tokens: Path, monkeypatch: pytest.MonkeyPatch) -> Spy:
    made = Spy(Prompts(tokens))
    hidden, energy = DDiT.hidden, EnergyNet.forward

    def answers(self: Any, x: Tensor, *told: Any, **more: Any) -> Tensor:
        out: Tensor = hidden(self, x, *told, **more)
        made.look(x, out)
        return out

    def scores(self: Any, x: Tensor) -> Tensor:
        out: Tensor = energy(self, x)
        made.look(x, out)
        return out

    monkeypatch.setattr(DDiT, "hidden", answers)
    monkeypatch.setattr(EnergyNet, "forward", scores)
    return made


def settings_for(name: str, source: str, tokens: Path, models: dict[str, Path], out: Path, **more: Any) -> Any:
    loop = {"steps": 4, "batch": 8, "device": "cpu", "eval_every": 4, "save_every": 2, "keep": 5}
    given = {"tokens": tokens, "init_from": models[source], "out": out, "loop": loop, "eval_rows": 4, "eval_times": 2}
    given |= {"optim": {"lr": 1e-3, "warmup": 1, "ema": 0.9}, **OWN.get(name, {}), **more}
    if name in ("ts-dfm", "idlm"):
        given["compass"] = models[f"compass-{source}"]
    if name == "reinforce":
        given |= {"judge": str(models["judge"]), "own": models["judge"]}
    return build(method(name).settings, given)


@pytest.mark.parametrize(("name", "source"), EVERY)
def test_prompts_stay_and_are_not_learned(
    name: str, source: str, tokens: Path, models: dict[str, Path], spy: Spy, tmp_path: Path
) -> None:
    """In student, teacher, auxiliary and compass, in training and evaluation; stopped, resumed, sampled."""
    settings = settings_for(name, source, tokens, models, tmp_path / "whole")
    method(name).train(settings)
    assert spy.seen > 4 * 8
    assert spy.slopes == 0
    assert spy.free > 0
    shutil.copytree(tmp_path / "whole", tmp_path / "part")
    shutil.rmtree(tmp_path / "part/checkpoints/step-00000004")
    method(name).train(dataclasses.replace(settings, out=tmp_path / "part", resume=True))
    one, other = (load_weights(tmp_path / each, "ema") for each in ("whole", "part"))
    assert all(torch.equal(one[key], other[key]) for key in one)
    asked = ["3 and 4 make\n", "12 and 13 make\n"]
    made = tsdfm.load(tmp_path / "whole", "cpu").sample(n=2, steps=3, prompts=asked, trajectory=True)
    assert [text.startswith(asked[i // 2]) for i, text in enumerate(made.texts)] == [True] * 4


@pytest.mark.parametrize("source", ["uniform", "mask"])
@pytest.mark.parametrize("objective", ["nce", "ratio"])
def test_a_compass_corrupts_answers_alone(
    objective: str, source: str, tokens: Path, models: dict[str, Path], spy: Spy, tmp_path: Path
) -> None:
    """Positives, earlier states, corruptions of every strategy, jumps of the teacher; and its examination."""
    made = train_compass(compass_settings(tokens, models[source], tmp_path / "compass", objective))
    found = validate(ValidateSettings(compass=made, pairs=16, rows=8, times=4, candidate_rows=4, device="cpu"))
    assert spy.seen > 300
    assert all(0 <= share <= 1 for share in found["accuracy"].values())


def loss_of(name: str, settings: Any, batch: Batch) -> float:
    """The loss of a batch at the weights of step 0, from a task of its own."""
    found: Any = method(name)
    origin = load_velocity(settings.init_from, "cpu")
    task = found.task(settings, spec_for(settings, origin.spec, found), None, Processes())
    begin(task, settings, start_of(settings))
    task.bind(Context(ema=copy.deepcopy(task.model), world=Processes()))
    return task.loss(task.model, batch, 0)[0].item()


@pytest.mark.parametrize(("name", "source"), [pair for pair in EVERY if pair[0] != "t3d"])  # whose rows are its texts
def test_the_mean_is_over_answers(
    name: str, source: str, tokens: Path, models: dict[str, Path], tmp_path: Path
) -> None:
    """Rows of which only the anchor is given are rows of any layout; a row's loss is the mean over its own answer."""
    settings = settings_for(name, source, tokens, models, tmp_path / "none")
    rows = TokenRows(tokens, "train")
    taken, numbers = torch.from_numpy(rows.take(range(8)).astype("int64")), torch.arange(8)
    bare, given = torch.arange(rows.length) < 1, torch.from_numpy(rows.given(range(8)))
    plain = loss_of(name, settings, Batch(taken, numbers))
    assert loss_of(name, settings, Batch(taken, numbers, given=bare.expand(8, -1))) == pytest.approx(plain, rel=1e-6)
    assert loss_of(name, settings, Batch(taken, numbers, given=given)) != plain
    states = States(taken, taken, *torch.zeros(2, 8), 8, 8, RowNoise(0, numbers), numbers, 1, 8 * 23, given=given)
    shares = states.shares()
    assert shares[given].abs().max() == 0
    assert shares.sum(-1).tolist() == pytest.approx([1 / 8] * 8)


def test_common_tokens_are_those_of_answers(tokens: Path) -> None:
    rows = TokenRows(tokens, "train")
    taken, given = rows.take(range(len(rows))), rows.given(range(len(rows)))
    assert count_tokens(rows).tolist() == np.bincount(taken[~given], minlength=rows.vocab_size).tolist()


def jumps_of(source: str) -> list[str]:
    """Every jump that models of a source can write by."""
    found = list[str]()
    for name in (*JUMPS, *brought_jumps()):
        try:
            jump_from(name, schedule_from("poly:1"), source_from(source, 7))
        except tsdfm.UserError:
            continue
        found.append(name)
    return found


WAYS = [(source, jump) for source in ("uniform", "mask") for jump in jumps_of(source)]


@pytest.mark.parametrize(("source", "jump"), WAYS)
def test_no_jump_moves_a_prompt(source: str, jump: str, models: dict[str, Path], spy: Spy) -> None:
    asked = ["1 and 2 make\n", "9 and 13 make\n"]
    made = tsdfm.load(models[source], "cpu").sample(n=2, steps=4, jump=jump, prompts=asked)
    assert spy.seen >= 4
    assert bool(spy.prompts.given(made.tokens).any())
