"""IDLM: trained from four kinds of teachers, resumed with all that stands beside the student, sampled and played."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import tsdfm
from tsdfm.cli import main
from tsdfm.distil.matching.settings import AuxiliarySettings, WatchSettings
from tsdfm.distil.matching.watch import Watch
from tsdfm.distil.settings import NavigateSettings, StudentLoop
from tsdfm.errors import UserError
from tsdfm.methods.idlm import METHOD, IDLMOptim, IDLMSettings
from tsdfm.store.manifest import read_manifest
from tsdfm.tokens.rows import TokenRows

KINDS: dict[str, dict[str, Any]] = {
    # told h, both forms, every anchor, a compass in both places; its watch takes all for a collapse, and goes back once
    "uniform": {
        "form": "mix",
        "step_size": True,
        "anchor": 0.25,
        "pull": 0.1,
        "width": 0.1,
        "tilt": 0.3,
        "navigate": NavigateSettings(tau=0.0, k=2),
        "watch": WatchSettings(every=3, least=0.99, rollback=1),
    },
    "duo": {"form": "mix", "pull": 0.1, "since": 0.25},
    "mask": {
        "form": "posterior",
        "own": 0.0,
        "tilt": 0.3,
        "auxiliary": AuxiliarySettings(alone=2, warmup=1, lr=1e-3, dense=False),
    },
    "mdlm": {"latent": True, "auxiliary": AuxiliarySettings(alone=2, warmup=1, lr=1e-3, steps=2, teacher=0.5)},
}


def settings_for(teachers: dict[str, Path], tokens: Path, kind: str, out: Path, **given: Any) -> IDLMSettings:
    values: dict[str, Any] = {
        "tokens": tokens,
        "init_from": teachers[kind],
        "out": out,
        "eval_rows": 4,
        "eval_times": 1,
        "auxiliary": AuxiliarySettings(alone=2, warmup=1, lr=1e-3),
        "loop": StudentLoop(steps=8, batch=8, device="cpu", log_every=2, eval_every=4, save_every=4, keep=5),
        "optim": IDLMOptim(lr=1e-3, warmup=3, ema=0.9),
    }
    if "tilt" in KINDS[kind]:
        values["compass"] = teachers[f"compass-{kind}"]
    return IDLMSettings(**{**values, **KINDS[kind], **given})


def test_the_watch_counts_all_but_the_ends_that_fill_a_row_up(
    teachers: dict[str, Path], tokens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def add(self: Watch, *parts: Any) -> None:
        seen.append(parts)

    monkeypatch.setattr(Watch, "add", add)
    loop = StudentLoop(steps=1, batch=8, device="cpu", eval_every=0, save_every=0)
    auxiliary = AuxiliarySettings(alone=0, warmup=1, lr=1e-3)
    METHOD.train(settings_for(teachers, tokens, "mask", tmp_path / "run", loop=loop, auxiliary=auxiliary))
    over = TokenRows(tokens, "train").end_of_text
    ((said, data, _, counted),) = seen
    for part, places in zip((said, data), counted, strict=True):
        assert torch.equal(places, part != over)
    assert 0 < int(counted[1].sum()) < counted[1].numel()


@pytest.mark.parametrize("kind", KINDS)
def test_trained_resumed_sampled_and_played(
    kind: str, teachers: dict[str, Path], tokens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_for(teachers, tokens, kind, tmp_path / "whole")
    METHOD.train(settings)
    said = capsys.readouterr().err
    assert ("back to its last good weights, at 0.5 of the learning rate" in said) == (kind == "uniform")
    shutil.copytree(tmp_path / "whole", tmp_path / "part")
    shutil.rmtree(tmp_path / "part/checkpoints/step-00000008")
    METHOD.train(dataclasses.replace(settings, out=tmp_path / "part", resume=True))
    one, other = (tmp_path / name / "checkpoints/step-00000008" for name in ("whole", "part"))
    files = {path.name.removesuffix(".safetensors") for path in one.glob("*.safetensors")}
    beside = {"auxiliary", "auxiliary_optim", "watch"} | ({"good", "width"} if kind == "uniform" else set())
    assert files == {"model", "ema", "optim", *beside, *(set() if kind == "mask" else {"texts"})}
    for name in files:  # to the bit, with all that stands beside the student
        assert (one / f"{name}.safetensors").read_bytes() == (other / f"{name}.safetensors").read_bytes(), name
    lines = [json.loads(line) for line in (tmp_path / "whole/metrics.jsonl").read_text().splitlines()]
    assert {"aux", "gap", "entropy", "text_bits", "data_bits", "pool_bits", "data_pool_bits"} <= lines[0].keys()
    assert {"elbo", "gap"} <= lines[-1].keys()
    model = read_manifest(tmp_path / "whole")["model"]
    assert model["method"] == "idlm"
    jump = "cumulative" if kind in ("uniform", "duo") else "ancestral"
    assert (model["step_size"], model["jump"]) == (kind == "uniform", jump)
    answers = {"mdlm": "subs", "duo": "others"}.get(kind, "plain")
    assert (model["logits"], model["time"]) == (answers, kind != "mdlm")
    assert model["latent"] == (kind == "mdlm")
    way = tmp_path / "way.json"
    words = ["sample", str(tmp_path / "whole"), "--steps", "4", "--n", "2", "--save-trajectory", str(way)]
    assert main([*words, "--prefix", "Mia"]) == 0
    assert main(["view", str(way), "--terminal"]) == 0
    made = tsdfm.load(tmp_path / "whole", "cpu").sample(n=3, steps=4, seed=1)
    assert made.nfe == 4
    assert int(made.tokens.max()) < model["vocab"]


def test_at_first_the_auxiliary_learns_alone(teachers: dict[str, Path], tokens: Path, tmp_path: Path) -> None:
    """The student is its teacher for so long, to the bit, and the auxiliary has moved on."""
    loop = StudentLoop(steps=3, batch=8, device="cpu", save_every=2, eval_every=0)
    METHOD.train(settings_for(teachers, tokens, "mdlm", tmp_path / "run", loop=loop, latent=False))
    made = tmp_path / "run/checkpoints/step-00000002"
    teacher = load_file(teachers["mdlm"] / "checkpoints/step-00000030/ema.safetensors")
    student, auxiliary = (load_file(made / f"{name}.safetensors") for name in ("model", "auxiliary"))
    assert all(torch.equal(student[name], teacher[name]) for name in teacher)
    assert any(not torch.equal(auxiliary[name], teacher[name]) for name in teacher)
    assert not any(x.any() for x in load_file(made / "optim.safetensors").values())


def test_parts_of_a_batch_make_the_same_step(teachers: dict[str, Path], tokens: Path, tmp_path: Path) -> None:
    """The auxiliary takes one step for a batch, in however many parts it comes."""
    runs = []
    for micro in (None, 4):
        loop = StudentLoop(steps=3, batch=8, micro=micro, device="cpu", save_every=0, eval_every=0)
        own = AuxiliarySettings(alone=0, warmup=1, lr=1e-3)
        out = tmp_path / str(micro)
        METHOD.train(settings_for(teachers, tokens, "uniform", out, loop=loop, auxiliary=own, width=0.0))
        runs.append(out / "checkpoints/step-00000003")
    for name in ("model", "auxiliary"):
        one, two = (torch.cat([x.flatten() for x in load_file(run / f"{name}.safetensors").values()]) for run in runs)
        # AdamW moves a weight by up to its rate whatever its gradient is, so also by what sums were rounded to
        assert (one - two).norm() < 0.05 * 3 * 1e-3 * len(one) ** 0.5


def test_a_teacher_besides_what_it_starts_from(teachers: dict[str, Path], tokens: Path, tmp_path: Path) -> None:
    """A student goes on from a student that is told h, matched to the teacher of both."""
    short = StudentLoop(steps=3, batch=4, device="cpu", save_every=0, eval_every=0)
    first = settings_for(teachers, tokens, "uniform", tmp_path / "first", loop=short)
    METHOD.train(first)
    again = dataclasses.replace(first, init_from=first.out, out=tmp_path / "again", step_size=False)
    with pytest.raises(UserError, match="needs --teacher"):
        METHOD.train(again)
    METHOD.train(dataclasses.replace(again, teacher=teachers["uniform"]))
    manifest = read_manifest(tmp_path / "again")
    assert manifest["model"]["step_size"]
    assert {"tokens", "init_from", "teacher", "compass"} == set(manifest["inputs"])


def test_what_cannot_be(
    teachers: dict[str, Path],
    tokens: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ["train", "idlm", "--tokens", str(tokens), "--out", str(tmp_path / "no"), "--loop.device", "cpu"]
    words += ["--init-from", str(teachers["mask"])]
    for more, why in (
        (["--anchor", "0.5"], "set --step-size, or anchor to 0"),
        (["--anchor", "1"], "leaves no row to match"),
        (["--step-size", "--anchor", "0.5", "--loop.micro", "1"], "raise loop.micro, or lower anchor"),
        (["--loop.steps", "100"], "auxiliary.alone leaves the student no step"),
        (["--own", "2"], "own must be from 0 to 1"),
        (["--passes", "4,8"], "pass_weights takes 2 weights"),
        (["--late", "16", "--passes", "16", "--pass-weights", "1"], "16 steps along a late grid of power 16"),
        (["--compass", str(teachers["mask"])], "set anchor or tilt above 0"),
        (["--tilt", "1"], "it needs --compass"),
        (["--watch.rollback", "1", "--watch.every", "0"], "set watch.every above 0"),
        (["--auxiliary.steps", "2", "--loop.micro", "2"], "leave loop.micro out"),
        (["--teacher", str(teachers["uniform"])], "they do not belong together"),
    ):
        assert main([*words, *more]) == 2
        assert why in capsys.readouterr().err
    monkeypatch.setattr("tsdfm.machine.memory", lambda: 2**23)
    for more, advice in (([], "or set loop.micro"), (["--auxiliary.steps", "2"], "lower loop.batch")):
        assert main([*words, "--loop.batch", "4096", *more]) == 2
        assert capsys.readouterr().err.endswith(f"{advice}\n")
    assert not (tmp_path / "no").exists()
