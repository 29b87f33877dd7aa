"""Reinforce: a judge of other tokens read place by place, trainings that learn, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tsdfm
from story_judges import bytes_judge, story_rows
from tsdfm.cli import main
from tsdfm.distil.policy.task import PolicyTask, Tried
from tsdfm.engine.distributed import Processes
from tsdfm.engine.task import Context
from tsdfm.errors import UserError
from tsdfm.judges.inhouse import inhouse_judge
from tsdfm.methods.reinforce import METHOD, ReinforceLoop, ReinforceOptim, ReinforceSettings
from tsdfm.store.manifest import read_manifest
from tsdfm.tokens.tokenizer import load_tokenizer


def settings_for(model: Path, tokens: Path, judge: Path, out: Path, **given: Any) -> ReinforceSettings:
    values: dict[str, Any] = {
        "tokens": tokens,
        "init_from": model,
        "judge": str(judge),
        "own": judge,
        "out": out,
        "passes": (2, 4),
        "first": 1,
        "alone": 2,
        "eval_rows": 4,
        "eval_times": 1,
        "loop": ReinforceLoop(steps=8, batch=4, device="cpu", log_every=2, eval_every=4, save_every=4, keep=5),
        "optim": ReinforceOptim(lr=1e-3, warmup=2, ema=0.9),
    }
    return ReinforceSettings(**{**values, **given})


def task_of(settings: ReinforceSettings) -> PolicyTask:
    """The task of a training, bound to this process; its model is the start's."""
    task = METHOD.task(settings, tsdfm.load(settings.init_from, "cpu").velocity.spec, None, Processes())
    task.bind(Context(ema=None, world=Processes()))
    return task


def tried(x: Tensor, texts: int, given: Tensor | None = None, *, last: bool = True) -> Tried:
    """A step that led to rows x [n, L], so many of each state; nothing of them is given unless said."""
    z, when = x[::texts], torch.zeros(len(x) // texts)
    return Tried(z, when, when, x, x, last, torch.zeros_like(x, dtype=torch.bool) if given is None else given)


@pytest.mark.parametrize("kind", ["uniform", "dfm", "mdlm"])
def test_trained_resumed_and_sampled(
    kind: str, uniform_model: Path, masked_models: dict[str, Path], tokens: Path, judge: Path, tmp_path: Path
) -> None:
    model = masked_models.get(kind, uniform_model)
    more = {"late": 2.0, "again": 1, "beginnings": 0.5} if kind == "uniform" else {}
    settings = settings_for(model, tokens, judge, tmp_path / "whole", **more)
    METHOD.train(settings)
    shutil.copytree(tmp_path / "whole", tmp_path / "part")
    shutil.rmtree(tmp_path / "part/checkpoints/step-00000008")
    moved = shutil.copytree(judge, tmp_path / "moved")  # where its inputs lie does not matter
    METHOD.train(dataclasses.replace(settings, judge=str(moved), own=moved, out=tmp_path / "part", resume=True))
    one, other = (tmp_path / name / "checkpoints/step-00000008" for name in ("whole", "part"))
    files = {path.name.removesuffix(".safetensors") for path in one.glob("*.safetensors")}
    assert files == {"model", "ema", "optim", "own", "own_optim", "usual", "watch", "width"}
    for name in files:  # to the bit
        assert (one / f"{name}.safetensors").read_bytes() == (other / f"{name}.safetensors").read_bytes(), name
    lines = [json.loads(line) for line in (tmp_path / "whole/metrics.jsonl").read_text().splitlines()]
    assert {"nats", "gap", "places", "stray", "text_bits"} <= lines[0].keys()
    said = read_manifest(one)["model"]
    before = read_manifest(model / "checkpoints" / sorted(p.name for p in (model / "checkpoints").iterdir())[-1])
    assert said["method"] == "reinforce"
    assert said["jump"] == ("late:2.0:1" if more else before["model"]["jump"])
    assert len(tsdfm.load(tmp_path / "whole", "cpu").sample(n=2, steps=4).texts) == 2


def test_texts_become_likelier_or_more_varied(uniform_model: Path, tokens: Path, judge: Path, tmp_path: Path) -> None:
    """The judge's nats fall, in other texts than those it learned from; with much weight on entropy they vary."""
    loop = ReinforceLoop(steps=60, batch=8, device="cpu", log_every=10, eval_every=0, save_every=0)
    given: dict[str, Any] = {"loop": loop, "passes": (4,), "alone": 0, "own_warmup": 0}
    for name, entropy in (("likely", 0.0), ("varied", 3.0)):
        METHOD.train(settings_for(uniform_model, tokens, judge, tmp_path / name, entropy=entropy, **given))
    reader, cost, bits = inhouse_judge(judge, "cpu"), dict[str, float](), dict[str, float]()
    for model in (uniform_model, tmp_path / "likely", tmp_path / "varied"):
        made = tsdfm.load(model, "cpu").sample(n=64, steps=4, seed=3)
        scores = reader.score(made.texts)
        cost[model.name] = sum(one.nll for one in scores) / sum(one.tokens for one in scores)
        _, counts = made.tokens.unique(return_counts=True)
        share = counts / counts.sum()
        bits[model.name] = -float((share * share.log2()).sum())
    assert cost["likely"] < 0.8 * cost["dfm"]
    assert bits["likely"] < bits["dfm"]
    assert bits["varied"] > bits["likely"] + 1


def test_what_is_learned_are_the_probabilities_of_the_step(
    uniform_model: Path, masked_models: dict[str, Path], tokens: Path, judge: Path, tmp_path: Path
) -> None:
    """`PolicyTask.logs` are those of the jump by whole logits as the sampler reads them, text by text."""
    from tsdfm.distil.run import begin, spec_for, start_of
    from tsdfm.nn.velocity import as_model
    from tsdfm.tokens.loader import Batch

    for model in (uniform_model, *masked_models.values()):
        settings = settings_for(model, tokens, judge, tmp_path / "none", passes=(3,), first=2, texts=3)
        origin = start_of(settings)
        spec = spec_for(settings, tsdfm.load(model, "cpu").velocity.spec, METHOD)
        for logits in {spec.logits, "subs" if spec.source == "mask" else spec.logits}:
            task = METHOD.task(settings, dataclasses.replace(spec, logits=logits), None, Processes())
            begin(task, settings, origin)
            task.bind(Context(ema=None, world=Processes()))
            net, batch = task.model.eval(), Batch(story_rows(tokens, 4), torch.arange(4))
            step = task.tries(net, batch)
            found = task.logs(net, step)
            said = as_model(net, task.spec)(step.z, step.t.float(), step.h.float()).double().log_softmax(-1)
            for n in range(12):
                g, top = n // 3, spec.vocab - 1
                z, y = step.z[g], step.y[n]
                own, other = (said[g].gather(-1, w.clamp(max=top)[:, None])[:, 0] for w in (z, y))
                rows = (w[None] for w in (z, y, own, other))
                wanted = task.jump.log_step(*rows, step.t[g : g + 1], step.h[g : g + 1])[0]
                torch.testing.assert_close(found[n, 1:], wanted[1:], rtol=1e-4, atol=1e-4)
            assert bool((step.y != step.z.repeat_interleave(3, 0)).any())


def test_texts_begin_as_they_are_sampled_without_an_end_among_the_noise(
    uniform_model: Path, tokens: Path, judge: Path, tmp_path: Path
) -> None:
    from tsdfm.tokens.loader import Batch

    model = tsdfm.load(uniform_model, "cpu")
    task = task_of(settings_for(uniform_model, tokens, judge, tmp_path / "none", passes=(1,), texts=2))
    rows = story_rows(tokens, 8).repeat(8, 1)
    begun = task.tries(model.velocity.net, Batch(rows, torch.arange(64))).z[:, 1:]
    assert not bool((begun == model.never_noise).any())
    assert begun.unique().numel() > 300


def test_some_texts_go_on_from_real_beginnings(uniform_model: Path, tokens: Path, judge: Path, tmp_path: Path) -> None:
    from tsdfm.tokens.loader import Batch

    settings = settings_for(uniform_model, tokens, judge, tmp_path / "none", passes=(2,), texts=2, beginnings=0.5)
    task = task_of(settings)
    rows, over = story_rows(tokens, 8).repeat(8, 1), load_tokenizer(tokens).end_of_text
    step = task.tries(tsdfm.load(uniform_model, "cpu").velocity.net, Batch(rows, torch.arange(64)))
    real, given = rows.repeat_interleave(2, 0), step.given
    for made in (step.x, step.y):
        assert bool((made[given] == real[given]).all())
    shown = given[::2, 1:].sum(-1)
    assert torch.equal(given[:, 1:], torch.arange(rows.shape[1] - 1) < given[:, 1:].sum(-1, keepdim=True))
    size = torch.tensor([2 + row[1:].tolist().index(over) for row in rows]) - 1
    assert 20 <= int((shown > 0).sum()) <= 44
    assert bool((shown <= (size / 2).ceil()).all())
    assert len(shown.unique()) > 8
    _, counts, _ = task.judged(step, rows, 0)
    assert not bool((counts & given).any())


def test_the_watch_sees_texts_that_become_short(
    uniform_model: Path,
    tokens: Path,
    judge: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What stands behind an end is no part of a text, nor is what was given, in the student's texts and in the data."""
    from tsdfm.distil.matching.settings import WatchSettings
    from tsdfm.tokens.loader import Batch

    settings = settings_for(uniform_model, tokens, judge, tmp_path / "none", texts=2, watch=WatchSettings(every=1))
    net, task = tsdfm.load(uniform_model, "cpu").velocity.net, task_of(settings)
    data, over = story_rows(tokens, 4), load_tokenizer(tokens).end_of_text
    given = torch.zeros(data.shape, dtype=torch.bool)
    given[:, :3] = True

    def bits(row: list[int]) -> float:
        return -sum(row.count(w) / len(row) * math.log2(row.count(w) / len(row)) for w in {*row})

    def see(texts: Tensor) -> bool:
        """Whether a step that writes these texts is told to collapse."""
        x, known = (every.repeat_interleave(2, 0) for every in (texts, given))
        monkeypatch.setattr(task, "tries", lambda *_: tried(x, 2, known))
        task.loss(net, Batch(data, torch.arange(4)), 0)
        task.watch.look(1)
        return "it collapses" in capsys.readouterr().err

    short = data.clone()
    short[:, 5] = over  # words stand behind it, as many and as different as before
    assert not see(data)
    found = dict(task.watch.found)
    stories = [row[3 : 2 + row[1:].index(over)] for row in data.tolist()]
    assert float(found["data_bits"]) == pytest.approx(sum(map(bits, stories)) / 4, rel=1e-6)
    assert float(found["text_bits"]) == float(found["data_bits"])
    for _ in range(9):
        told = see(short)
    found = task.watch.found
    assert float(found["text_bits"]) == pytest.approx(sum(bits(row[3:6]) for row in short.tolist()) / 4, rel=1e-6)
    assert told


def test_what_stands_behind_an_end_costs(uniform_model: Path, tokens: Path, judge: Path, tmp_path: Path) -> None:
    """A stray token is worth less than the end that another text of its state has there; elsewhere nothing counts."""

    settings = settings_for(uniform_model, tokens, judge, tmp_path / "none", texts=2)
    task = task_of(settings)
    real, over = story_rows(tokens, 2), load_tokenizer(tokens).end_of_text
    real[:, -4:] = over  # every row has room behind its end
    x = real.repeat_interleave(2, 0)
    x[1, -1] = x[1, 1]
    worth, counts, told = task.judged(tried(x, 2), real, 0)
    assert float(told["stray"]) == 0.25
    assert bool(counts[:2, -1].all())
    assert worth[1, -1] < 0 < worth[0, -1]
    assert not bool(counts[:, -3:-1].any() | counts[2:, -1].any())  # behind their ends the other two are alike
    known = task.judged(tried(x, 2, x == x[1, 1]), real, 0)[2]
    assert float(known["stray"]) == 0  # nobody's doing


def test_an_end_that_left_words_behind_is_to_blame(
    uniform_model: Path, tokens: Path, judge: Path, tmp_path: Path
) -> None:
    """Also with a judge that says nothing of ends, as those of the hub are."""

    settings = settings_for(uniform_model, tokens, judge, tmp_path / "none", texts=2)
    task = task_of(settings)
    task.judge = dataclasses.replace(task.judge, end=None)
    real, over = story_rows(tokens, 2), load_tokenizer(tokens).end_of_text
    x = real.repeat_interleave(2, 0)
    x[1, 4] = over  # what was to follow stands behind it
    worth, counts, _ = task.judged(tried(x, 2), real, 0)
    last = 1 + real[0, 1:].tolist().index(over)
    assert bool(counts[:2, 4:last].all())
    assert float(worth[1, 4]) < -1
    assert not bool(counts[2:, -1].any())


def test_frequencies_are_compared_where_nothing_was_given(
    uniform_model: Path, tokens: Path, judge: Path, tmp_path: Path
) -> None:
    """A student that writes as the data does gains nothing by any token, however much of a row was given."""

    settings = settings_for(uniform_model, tokens, judge, tmp_path / "none", texts=2, width=1.0)
    task = task_of(settings)
    real = story_rows(tokens, 4)
    x = real.repeat_interleave(2, 0)
    given = torch.zeros_like(x, dtype=torch.bool)
    given[:, :9] = True
    for _ in range(5):
        rarer = task.rarer(tried(x, 2, given), real)
    assert isinstance(rarer, Tensor)
    written = task.written_part(x, given)
    assert float((rarer[written] - rarer[written].mean()).abs().max()) < 1e-5


def test_what_is_written_too_often_brings_less(uniform_model: Path, tokens: Path, judge: Path, tmp_path: Path) -> None:
    """By log(data/own) of the frequencies of what is written: padding does not count, ends do."""

    settings = settings_for(uniform_model, tokens, judge, tmp_path / "none", texts=2, width=0.5)
    task = task_of(settings)
    data, over = story_rows(tokens, 4), load_tokenizer(tokens).end_of_text
    x = data.clone()
    x[:, 3:] = over  # two tokens and an end
    x[:, 1:3] = int(data[0, 1])
    for _ in range(300):  # until the running averages are there
        found = task.rarer(tried(x.repeat_interleave(2, 0), 2, last=False), data)
    said = [row[1 : 2 + int((row[1:] == over).nonzero()[0])].tolist() for row in data]
    each = [token for row in said for token in row]
    for at, own in ((1, 2 / 3), (3, 1 / 3)):
        share = each.count(int(x[0, at])) / len(each)
        assert isinstance(found, Tensor)
        assert found[0, at].item() == pytest.approx(0.5 * math.log(share / own), abs=0.02)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"passes": ()}, "at least one number"),
        ({"alone": 8}, "no step to learn in"),
        ({"dropout": None}, "set dropout to 0"),
        ({"loop": ReinforceLoop(micro=2)}, "leave loop.micro out"),
        ({"loop": ReinforceLoop(parallel="fsdp")}, "not with fsdp"),
    ],
)
def test_settings_that_are_refused(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        settings_for(tmp_path, tmp_path, tmp_path, tmp_path, **given)


def test_what_cannot_be_trained_is_refused_in_one_line(
    uniform_model: Path,
    tokens: Path,
    judge: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ["train", "reinforce", "--tokens", str(tokens), "--init-from", str(uniform_model), "--out"]
    words += [str(tmp_path / "out"), "--loop.steps", "30", "--loop.device", "cpu", "--own", str(judge), "--judge"]
    assert main([*words, "world:small"]) == 2
    assert "says nothing of single tokens" in capsys.readouterr().err
    assert main([*words, str(judge), "--own", str(uniform_model)]) == 2
    assert "holds no judge" in capsys.readouterr().err
    monkeypatch.setattr("tsdfm.machine.memory", lambda: 2**22)
    assert main([*words, str(judge), "--loop.batch", "1024"]) == 2
    said = capsys.readouterr().err
    assert "lower loop.batch" in said
    assert "micro" not in said  # which it refuses
    assert not (tmp_path / "out").exists()


def test_starts_and_judges_that_do_not_fit_are_refused(
    uniform_model: Path, tokens: Path, judge: Path, tmp_path: Path
) -> None:
    spec = tsdfm.load(uniform_model, "cpu").velocity.spec
    settings = settings_for(uniform_model, tokens, judge, tmp_path / "none")
    for changed, said in (
        ({"anchor": 0}, "make the tokens with --layout document or prompt"),
        ({"logits": "score"}, "needs the probabilities of a step"),
        ({"latent": True}, "a latent number"),
    ):
        with pytest.raises(UserError, match=said):
            METHOD.task(settings, dataclasses.replace(spec, **changed), None, Processes())
    other = dataclasses.replace(settings, own=bytes_judge(tokens, tmp_path))
    with pytest.raises(UserError, match=r"vocab \d+, own has \d+: train that judge on these tokens"):
        METHOD.task(other, spec, None, Processes())
