"""Di4C: trained from teachers of both sources, resumed, sampled with a number a text and step, and played."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch

import tsdfm
from tsdfm.cli import main
from tsdfm.flow import RowNoise, solve
from tsdfm.methods.di4c import METHOD, Di4CLoop, Di4COptim, Di4CSettings
from tsdfm.samples.quick import Pass
from tsdfm.store.manifest import read_manifest


def settings_for(teachers: dict[str, Path], tokens: Path, kind: str, out: Path) -> Di4CSettings:
    return Di4CSettings(
        tokens=tokens,
        init_from=teachers[kind],
        out=out,
        mixture=3,
        gap=0.25,
        eval_rows=4,
        loop=Di4CLoop(steps=8, batch=4, device="cpu", log_every=2, eval_every=4, save_every=4, keep=5),
        optim=Di4COptim(lr=1e-3, warmup=2, ema=0.8),
    )


@pytest.mark.parametrize("kind", ["duo", "mdlm"])
def test_trained_resumed_sampled_and_played(kind: str, teachers: dict[str, Path], tokens: Path, tmp_path: Path) -> None:
    settings = settings_for(teachers, tokens, kind, tmp_path / "whole")
    METHOD.train(settings)
    shutil.copytree(tmp_path / "whole", tmp_path / "part")
    shutil.rmtree(tmp_path / "part/checkpoints/step-00000008")
    METHOD.train(dataclasses.replace(settings, out=tmp_path / "part", resume=True))
    for name in ("model", "ema", "optim"):
        one, other = (tmp_path / d / f"checkpoints/step-00000008/{name}.safetensors" for d in ("whole", "part"))
        assert one.read_bytes() == other.read_bytes(), name
    lines = [json.loads(line) for line in (tmp_path / "whole/metrics.jsonl").read_text().splitlines()]
    assert {"nll", "gain"} <= lines[0].keys()
    assert "kl" in lines[-1]
    model = read_manifest(tmp_path / "whole")["model"]
    assert (model["latent"], model["logits"]) == (True, "subs" if kind == "mdlm" else "others")
    way = tmp_path / "way.json"
    words = ["sample", str(tmp_path / "whole"), "--steps", "2", "--n", "2", "--save-trajectory", str(way)]
    assert main([*words, "--prefix", "Mia"]) == 0
    assert main(["view", str(way), "--terminal"]) == 0
    loaded = tsdfm.load(tmp_path / "whole", "cpu")
    made = loaded.sample(n=3, steps=2, seed=1)
    assert made.nfe == 2
    assert int(made.tokens.max()) < model["vocab"]
    again = loaded.sample(n=1, steps=2, seed=1, first=2)  # its λ too belongs to the text
    assert torch.equal(again.tokens[0], made.tokens[2])
    out, back = str(tmp_path / "export"), str(tmp_path / "back")
    assert main(["export", str(tmp_path / "whole"), "--to", out]) == 0  # in no public layout: those know no λ
    assert main(["import", out, "--out", back]) == 0
    for place in (out, back):
        assert torch.equal(tsdfm.load(place, "cpu").sample(n=3, steps=2, seed=1).tokens, made.tokens)


def test_every_text_draws_a_number_in_every_step(teachers: dict[str, Path], tokens: Path, tmp_path: Path) -> None:
    """The solver tells a latent model λ, and draws what it draws for others from the numbers after it."""
    METHOD.train(settings_for(teachers, tokens, "mdlm", tmp_path / "run"))
    velocity = tsdfm.load(tmp_path / "run", "cpu").velocity
    spec, seen = velocity.spec, list[torch.Tensor]()

    class Spy(Pass):
        def look(self, x_t, t, h, latent=None):  # type: ignore[no-untyped-def]
            seen.append(latent)
            return super().look(x_t, t, h, latent)

    x_0 = velocity.source.draw((3, spec.length), RowNoise(0, torch.arange(3)), torch.device("cpu"))
    solve(Spy(velocity), x_0, 4, velocity.jump(), RowNoise(7, torch.arange(3)))
    wanted, noise = [], RowNoise(7, torch.arange(3))
    for _ in range(4):
        wanted.append(noise.uniform((3,)).float())
        noise.uniform((3, spec.length, 2))
    assert all(torch.equal(a, b) for a, b in zip(seen, wanted, strict=True))


def test_what_cannot_be(
    teachers: dict[str, Path], tokens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "di4c", "--tokens", str(tokens), "--out", str(tmp_path / "no"), "--loop.device", "cpu"]
    words += ["--init-from", str(teachers["mask"])]
    for more, why in (
        (["--mixture", "0"], "mixture must be at least 1"),
        (["--gap", "2"], "gap must be above 0 and at most 1"),
        (["--teacher", str(teachers["uniform"])], "they do not belong together"),
    ):
        assert main([*words, *more]) == 2
        assert why in capsys.readouterr().err
    assert not (tmp_path / "no").exists()
