"""SDTT in rounds: trained from models of the mask source, stopped inside a round, resumed, sampled and played."""

from __future__ import annotations

import dataclasses
import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import tsdfm
from training import many_step
from tsdfm.cli import main
from tsdfm.errors import UserError
from tsdfm.methods.sdtt import METHOD, SDTTLoop, SDTTOptim, SDTTSettings
from tsdfm.report.runs import find_runs
from tsdfm.store.checkpoint import load_weights
from tsdfm.store.manifest import read_manifest


def settings_for(tokens: Path, start: Path, out: Path, **given: Any) -> SDTTSettings:
    """Three rounds of four steps, from 16 steps to 2; stopped after ten there is a checkpoint inside the third."""
    made: dict[str, Any] = {
        "start_steps": 16,
        "round": 4,
        "eval_rows": 8,
        "eval_times": 2,
        "loop": SDTTLoop(steps=12, batch=8, device="cpu", eval_every=4, save_every=5, log_every=4, keep=5),
        "optim": SDTTOptim(lr=2e-3, warmup=2, ema=0.9),
    }
    return SDTTSettings(tokens=tokens, init_from=start, out=out, **{**made, **given})


@pytest.fixture(scope="module", params=["mdlm", "dfm"])
def trained(
    request: pytest.FixtureRequest, tokens: Path, masked_models: dict[str, Path], tmp_path_factory: Any
) -> SDTTSettings:
    settings = settings_for(tokens, masked_models[request.param], tmp_path_factory.mktemp("sdtt") / "run")
    METHOD.train(settings)
    return settings


def test_it_says_what_it_is(trained: SDTTSettings) -> None:
    manifest, start = read_manifest(trained.out), read_manifest(trained.init_from)["model"]
    model = manifest["model"]
    assert (manifest["stage"], manifest["bound"]) == ("sdtt", "NELBO")
    assert (model["method"], model["logits"], model["jump"], model["rounds"]) == ("sdtt", "subs", "ancestral", 3)
    assert (model["time"], model["step_size"]) == (start["time"], False)
    runs = find_runs([trained.out])
    assert runs.label(runs.models[0]) == "sdtt, 3 rounds"
    assert not runs.models[0].many_step
    lines = [json.loads(line) for line in (trained.out / "metrics.jsonl").read_text().splitlines()]
    assert all(line["kl"] > 0 for line in lines if "kl" in line)
    assert sum("elbo" in line for line in lines) == 3


def test_a_run_resumed_inside_a_round_is_the_unbroken_one(trained: SDTTSettings, tmp_path: Path) -> None:
    """Its teacher is then neither the start nor the student of that step."""
    out = tmp_path / "part"
    shutil.copytree(trained.out, out)
    shutil.rmtree(out / "checkpoints" / "step-00000012")
    METHOD.train(dataclasses.replace(trained, out=out, resume=True))
    hashes = [json.loads((run / "manifest.json").read_text())["files"] for run in (out, trained.out)]
    assert hashes[0] == hashes[1]
    assert {"model.safetensors", "ema.safetensors", "teacher.safetensors"} <= {*hashes[0]}
    ten, twelve = (
        load_file(trained.out / "checkpoints" / f"step-000000{step}" / "teacher.safetensors") for step in (10, 12)
    )
    assert int(ten["round"]) == int(twelve["round"]) == 2
    assert all(torch.equal(ten[name], twelve[name]) for name in ten)
    student = load_weights(trained.out, "model")
    assert not all(torch.equal(student[name], ten[name]) for name in student)


def test_a_round_begins_with_the_student_of_the_one_before(trained: SDTTSettings, tmp_path: Path) -> None:
    """Stopped where a round ends, the student is the next round's teacher."""
    shorter = dataclasses.replace(trained.loop, steps=8)
    METHOD.train(dataclasses.replace(trained, out=tmp_path / "run", loop=shorter))
    student = load_weights(tmp_path / "run", "model")
    later = load_file(trained.out / "checkpoints" / "step-00000010" / "teacher.safetensors")
    assert all(torch.equal(student[name], later[name]) for name in student)


def test_it_writes_and_never_takes_a_token_back(trained: SDTTSettings) -> None:
    model = tsdfm.load(trained.out, "cpu")
    made = model.sample(n=3, steps=4, seed=1, prefix="Mia", trajectory=True)
    assert made.nfe == 4
    assert made.trajectory is not None
    for row in made.trajectory.rows:
        for (before, _), (after, _) in pairwise(row.states()):
            assert all(a == b for b, a in zip(before, after, strict=True) if b != made.trajectory.mask)
    assert all(text.startswith("Mia") for text in made.texts)
    assert int(made.tokens.max()) < model.velocity.spec.vocab


def test_by_the_command_line_from_a_student(
    trained: SDTTSettings, tokens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another round, from a model that has gone through three; and what is refused."""
    run, way = tmp_path / "run", tmp_path / "way.json"
    words = ["train", "sdtt", "--tokens", str(tokens), "--init-from", str(trained.out), "--out", str(run)]
    words += ["--loop.batch", "4", "--loop.device", "cpu", "--eval-rows", "4", "--eval-times", "1"]
    words += ["--divergence", "tvd", "--distance-of", "log-probabilities", "--teacher-steps", "3", "--start-steps", "4"]
    assert main([*words, "--loop.steps", "2"]) == 0
    assert read_manifest(run)["model"]["rounds"] == 4
    assert main(["sample", str(run), "--steps", "2", "--n", "2", "--save-trajectory", str(way)]) == 0
    assert main(["view", str(way), "--terminal"]) == 0
    capsys.readouterr()
    assert main([*words, "--round", "1", "--loop.steps", "3", "--out", str(tmp_path / "no")]) == 2
    assert "longer than the whole way" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("name", ["llada", "dream", "sedd"])
def test_other_starts_of_the_mask_source(name: str, tokens: Path, tmp_path: Path) -> None:
    """Shorter rows, shifted answers, scores by σ: the student is told and asked as its start is."""
    start = many_step(name, tokens, tmp_path / name, steps=2, source="mask")
    short = SDTTLoop(steps=2, batch=4, device="cpu", eval_every=0, save_every=0)
    out = METHOD.train(settings_for(tokens, start, tmp_path / "run", loop=short))
    before, after = (read_manifest(run)["model"] for run in (start, out))
    assert [after[word] for word in ("shift", "time", "clock")] == [before[word] for word in ("shift", "time", "clock")]
    assert (after["shift"], after["clock"] == "sigma", after["logits"]) == (name == "dream", name == "sedd", "subs")
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    first = next(line["loss"] for line in lines if "loss" in line)
    assert first < 0.1  # it begins as its teacher


def test_what_it_cannot_start_from(tokens: Path, uniform_model: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="sdtt is for the mask source"):
        METHOD.train(settings_for(tokens, uniform_model, tmp_path / "no"))
    assert not (tmp_path / "no").exists()
    with pytest.raises(UserError, match="teacher_steps must be at least 1"):
        settings_for(tokens, uniform_model, tmp_path / "no", teacher_steps=0)
