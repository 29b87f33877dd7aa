"""The compass from end to end on the story world, small enough for seconds."""

import json
import shutil

import numpy as np
import pytest
import torch
from rich.console import Console

from training import train as train_teacher
from tsdfm.cli import main
from tsdfm.compass import CompassSettings, ValidateSettings, load_compass
from tsdfm.compass.run import run
from tsdfm.compass.settings import CompassLoop, CompassNet, CompassOptim, NegativeSettings, RatioSettings
from tsdfm.compass.validate import validate
from tsdfm.corpus.run import run as make_corpus
from tsdfm.corpus.settings import CorpusSettings
from tsdfm.engine.settings import LoopSettings, OptimSettings
from tsdfm.errors import UserError
from tsdfm.methods.dfm import DFMSettings
from tsdfm.nn import NetSettings
from tsdfm.nn.velocity import load_velocity
from tsdfm.settings import build, to_dict
from tsdfm.store.manifest import read_manifest
from tsdfm.tokens.rows import TokenRows, count_tokens
from tsdfm.tokens.run import run as make_tokens
from tsdfm.tokens.settings import TokensSettings

STEPS = 60


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Tokens of the story world, a short teacher of each source, and a short compass of each."""
    home = tmp_path_factory.mktemp("compass")
    make_corpus(CorpusSettings(out=home / "corpus", name="world:small", limit=600, valid=0.1))
    make_tokens(
        TokensSettings(
            corpus=home / "corpus", out=home / "tokens", vocab_size=1024, length=40, layout="document", workers=1
        )
    )
    for source in ("uniform", "mask"):
        train_teacher(
            DFMSettings(
                tokens=home / "tokens",
                out=home / f"teacher-{source}",
                source=source,
                eval_rows=8,
                net=NetSettings(width=32, depth=2, heads=4, cond=16),
                loop=LoopSettings(steps=20, batch=16, device="cpu"),
                optim=OptimSettings(lr=3e-3, warmup=5, ema=0.5),
            )
        )
        run(settings(home, source))
    return home


def settings(home, source="uniform", out=None, **over):
    made = {
        "tokens": home / "tokens",
        "teacher": home / f"teacher-{source}",
        "out": out or home / f"compass-{source}",
        "negatives": 6,
        "lambda_reg": 0.01,
        "eval_rows": 32,
        "corrupt": NegativeSettings(levels=(0.125, 0.25)),
        "net": CompassNet(width=32, depth=1, heads=4, cond=16),
        "loop": CompassLoop(steps=STEPS, batch=16, log_every=10, eval_every=20, save_every=20, device="cpu"),
        "optim": CompassOptim(lr=5e-3, warmup=5, ema=0.9),
    }
    return CompassSettings(**{**made, **over})


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("source", ["uniform", "mask"])
def test_a_run_logs_its_losses_and_learns(home, source):
    lines = metrics(home / f"compass-{source}")
    train = [line for line in lines if "reg" in line]
    found = [line for line in lines if "score" in line]
    assert {"nce", "reg", "order", "loss"} <= train[0].keys()
    last = found[-1]
    names = ("time_downstep", "velocity_step", "random_replace", "frequency_replace", "token_repeat")
    assert all(0 <= last[f"acc_{name}"] <= 1 for name in names)
    four = [last[f"acc_{name}"] for name in names if name != "velocity_step"]
    assert last["strategy_acc"] == pytest.approx(sum(four) / 4)
    assert last["score"] == pytest.approx(last["strategy_acc"] + last["smooth_pct"])
    assert last["strategy_acc"] > 0.65
    assert train[-1]["nce"] < train[0]["nce"]
    best = json.loads((home / f"compass-{source}" / "checkpoints" / "best.json").read_text())
    assert best["step"] == max(found, key=lambda line: line["score"])["step"]
    assert load_compass(home / f"compass-{source}", "cpu").checkpoint.name == f"step-{best['step']:08d}"


@pytest.mark.parametrize("source", ["uniform", "mask"])
def test_validation_writes_a_table_a_json_and_a_figure(home, source):
    console = Console(record=True, width=120)
    asked = ValidateSettings(
        compass=home / f"compass-{source}", rows=20, times=6, pairs=100, candidate_rows=8, device="cpu"
    )
    found = validate(asked, console)
    folder = home / f"compass-{source}"
    assert json.loads((folder / "validation.json").read_text()) == json.loads(json.dumps(found))
    assert (folder / "energy.svg").read_text().startswith("<svg")
    text = console.export_text()
    for word in ("time_downstep", "Spearman", "per-sample smoothness", "adjacent bins", "True next state"):
        assert word in text
    four = [found["accuracy"][n] for n in ("time_downstep", "random_replace", "frequency_replace", "token_repeat")]
    assert found["accuracy"]["overall"] == pytest.approx(sum(four) / 4)
    assert sum(part["count"] for part in found["bins"]) == 20 * 7
    assert found["smoothness_pairs"] + found["identical_pairs"] == 20 * 6
    assert found["pairs"]["random_replace"] + found["void_pairs"]["random_replace"] == 100
    assert 0 <= found["adjacent_bins_monotone"] <= 1
    assert {(row["t"], row["h"]) for row in found["candidates"]} >= {(0.2, 0.25), (0.8, 0.125)}
    assert validate(asked, Console(quiet=True)) == found  # the same questions, the same answers


def test_a_compass_that_was_moved_is_examined_with_what_lies_beside_it(home, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("tokens", "teacher-uniform", "compass-uniform"):
        shutil.copytree(home / name, tmp_path / "ww" / name)
    path = tmp_path / "ww" / "compass-uniform" / "manifest.json"
    for place in (path, *path.parent.glob("checkpoints/*/manifest.json")):  # as if it had been trained in w
        place.write_text(place.read_text().replace(str(home), "w"))
    few = ["--rows", "4", "--times", "3", "--pairs", "8", "--candidate-rows", "2", "--device", "cpu"]
    assert main(["compass", "validate", "ww/compass-uniform", *few]) == 0
    assert "--tokens ww/tokens --init-from ww/teacher-uniform" in " ".join(capsys.readouterr().err.split())
    other = tmp_path / "ww" / "teacher-uniform" / "manifest.json"
    other.write_text(other.read_text().replace('"created": "', '"created": "later, '))  # another one of its name
    for name, option in (("teacher-uniform", "teacher"), ("tokens", "tokens")):
        if name == "tokens":
            shutil.rmtree(tmp_path / "ww" / name)
        assert main(["compass", "validate", "ww/compass-uniform", *few]) == 2
        said = f"no {option} at w/{name}, as when the compass was trained, nor beside it: give --{option}"
        assert capsys.readouterr().err == f"tsdfm: {said}\n"


def test_energies_of_any_batch_and_the_run_that_made_them(home):
    compass = load_compass(home / "compass-uniform", "cpu")
    rows = TokenRows(home / "tokens", "valid")
    tokens = torch.from_numpy(rows.take(range(10)).astype(np.int64))
    energies = compass.energy(tokens)
    assert energies.shape == (10,)
    assert energies.dtype == torch.float32
    assert torch.allclose(compass.energy(tokens[3:5]), energies[3:5], atol=1e-4)
    noise = torch.randint(0, rows.vocab_size, tokens.shape, generator=torch.Generator().manual_seed(0))
    assert compass.energy(noise).mean() > energies.mean()
    manifest = read_manifest(home / "compass-uniform")
    assert manifest["stage"] == "compass"
    assert manifest["inputs"].keys() == {"tokens", "teacher"}
    assert build(CompassSettings, manifest["settings"]) == settings(home)


def test_a_compass_is_no_velocity_network_and_the_reverse(home):
    with pytest.raises(UserError, match="holds no velocity network"):
        load_velocity(home / "compass-uniform")
    with pytest.raises(UserError, match="holds no compass"):
        load_compass(home / "teacher-uniform", "cpu")
    compass = load_compass(home / "compass-uniform", "cpu")
    with pytest.raises(UserError, match="has source mask"):
        compass.match(load_velocity(home / "teacher-mask").spec, "the student")
    with pytest.raises(UserError, match="has source mask"):
        validate(ValidateSettings(compass=home / "compass-uniform", teacher=home / "teacher-mask", device="cpu"))


def test_resuming_gives_the_unbroken_run(home, tmp_path):
    short = CompassLoop(steps=4, batch=16, eval_every=0, save_every=2, log_every=1, keep=9, device="cpu")
    run(settings(home, out=tmp_path / "whole", loop=short))
    shutil.copytree(tmp_path / "whole", tmp_path / "broken")
    shutil.rmtree(tmp_path / "broken" / "checkpoints" / "step-00000004")
    (tmp_path / "broken" / "checkpoints" / "best.json").unlink()
    run(settings(home, out=tmp_path / "broken", loop=short, resume=True))
    a, b = (load_compass(tmp_path / name, "cpu", choose="newest") for name in ("whole", "broken"))
    assert a.sha256 == b.sha256
    with pytest.raises(UserError, match="gamma"):
        run(settings(home, out=tmp_path / "broken", loop=short, resume=True, gamma=0.5))


def test_the_ratio_objective_starts_from_an_ordinary_compass(home, tmp_path):
    out = tmp_path / "ratio"
    made = settings(
        home,
        out=out,
        objective="ratio",
        init_from=home / "compass-uniform",
        ratio=RatioSettings(n=3),
        loop=CompassLoop(steps=20, batch=16, eval_every=10, save_every=0, device="cpu"),
    )
    run(made)
    found = [line for line in metrics(out) if "pair_accuracy" in line]
    assert {"nce", "pair_accuracy", "spread", "shortfall"} <= found[-1].keys()
    assert found[-1]["pair_accuracy"] > 0.5
    assert load_compass(out, "cpu").spec.objective == "ratio"
    asked = ValidateSettings(compass=out, rows=4, times=4, pairs=8, candidate_rows=8, device="cpu")
    report = validate(asked, Console(quiet=True))
    assert report["objective"] == "ratio"
    assert all(row["spread"] > 0 for row in report["candidates"])


def test_starting_from_the_teacher_and_what_does_not_fit(home, tmp_path):
    once = CompassLoop(steps=1, batch=8, eval_every=0, save_every=0, device="cpu")
    run(settings(home, out=tmp_path / "lower", init="teacher", loop=once, optim=CompassOptim(lr=1e-12, ema=0.0)))
    mine, theirs = load_compass(tmp_path / "lower", "cpu").net, load_velocity(home / "teacher-uniform").net
    assert torch.allclose(mine.blocks[0].qkv.weight, theirs.blocks[0].qkv.weight, atol=1e-6)
    with pytest.raises(UserError, match="init = teacher needs"):
        run(settings(home, out=tmp_path / "wide", init="teacher", net=CompassNet(preset="tiny"), loop=once))
    with pytest.raises(UserError, match="another size"):
        run(settings(home, out=tmp_path / "big", init_from=home / "compass-uniform", net=CompassNet(preset="tiny")))
    run(settings(home, out=tmp_path / "same", init="teacher", net=CompassNet(), loop=once))  # no sizes: the teacher's
    made, teacher = (read_manifest(place) for place in (tmp_path / "same", home / "teacher-uniform"))
    assert made["compass"]["shape"]["width"] == teacher["model"]["shape"]["width"]
    assert made["compass"]["shape"]["depth"] == max(1, round(teacher["model"]["shape"]["depth"] / 2))


def test_too_few_places_are_refused_before_anything_is_written(home, tmp_path):
    few = CompassNet(width=32, depth=1, heads=4, cond=16, positions=3)
    with pytest.raises(UserError, match=r"rows of \d+ tokens, but net\.positions is 3: raise it"):
        run(settings(home, out=tmp_path / "few", net=few))
    assert list(tmp_path.iterdir()) == []


def test_token_frequencies_are_those_of_the_training_rows(home):
    rows = TokenRows(home / "tokens", "train")
    whole = np.bincount(rows.take(range(len(rows)))[:, rows.anchor :].reshape(-1), minlength=rows.vocab_size)
    assert count_tokens(rows, 10**9).tolist() == whole.tolist()
    part = count_tokens(rows, 50)
    assert part.sum() == 50 * (rows.length - rows.anchor)


def test_paper_defaults_survive_a_partial_override():
    made = build(CompassSettings, {"tokens": "t", "teacher": "v", "out": "o", "optim": {"lr": 3e-4}, "net": {}})
    optim = to_dict(made.optim)
    assert (optim["lr"], optim["beta1"], optim["beta2"]) == (3e-4, 0.9, 0.999)
    assert (optim["weight_decay"], optim["warmup"], optim["floor"], optim["clip"]) == (0.01, 5000, 0.1, 1.0)
    assert (made.negatives, made.gamma, made.delta_min, made.delta_max, made.clean) == (12, 0.3, 0.05, 0.5, 0.1)
    assert made.loop.batch == 64
    assert made.corrupt.levels[0] == pytest.approx(1 / 1024)
    assert made.corrupt.levels[-1] == 0.0625
