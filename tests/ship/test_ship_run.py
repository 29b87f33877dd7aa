"""`tsdfm ship`: what is in a bundle, that it loads as what it was, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from ship_parts import a_spec, save, ship, words

import tsdfm
from tsdfm.cli import main
from tsdfm.compass.model import load_compass
from tsdfm.errors import UserError
from tsdfm.nn.velocity import Velocity, load_velocity
from tsdfm.ship.check import moments_of
from tsdfm.ship.run import named
from tsdfm.store.bundle import read_bundle
from tsdfm.store.files import file_sha256
from tsdfm.store.manifest import descent_of

FILES = ["card.md", "compass.safetensors", "manifest.json", "student.safetensors", "teacher.safetensors"]


def by_hand(file: Path) -> dict[str, torch.Tensor]:
    """The weights of a packed file, put together by numpy."""
    stored = load_file(file)
    out = {}
    for name, tensor in stored.items():
        if "/" in name:
            continue
        if tensor.dtype == torch.uint8:
            whole = np.frombuffer(zlib.decompress(tensor.numpy().tobytes(), -15), np.int8).astype(np.float32)
            base = by_hand(file.with_name("teacher.safetensors"))[name] if f"{name}/delta" in stored else None
            scale = stored[f"{name}/scale" if base is None else f"{name}/delta"].float().numpy()
            made = torch.from_numpy(whole.reshape(*scale.shape[:-1], -1) * scale)
            out[name] = made if base is None else made + base
        elif tensor.dtype == torch.int8:
            scale = stored[f"{name}/scale"].numpy()
            out[name] = torch.from_numpy(tensor.numpy().astype(np.float32) * scale)
        else:
            out[name] = tensor.float()
    return out


def test_what_a_model_started_from_is_told_without_its_place() -> None:
    assert named("/a/b/fs-dfm-uniform") == "fs-dfm-uniform"
    assert named("/a/models/tsdfm-stories/teacher.safetensors") == "tsdfm-stories/teacher"
    assert named(None) is None


def test_what_is_in_it(shipping: Path) -> None:
    folder = shipping / "int8"
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert files == [*FILES, "tokenizer/tokenizer.json"]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["stage"], manifest["name"], manifest["weights"]) == ("ship", "tsdfm-stories", "int8")
    assert manifest["defaults"] == {"n": 2, "steps": 8, "temperature": 1.0, "jump": "auto"}
    for role, stage in (("student", "ts-dfm"), ("teacher", "teacher"), ("compass", "compass")):
        about, origin = manifest["members"][role], shipping / role / "checkpoints" / "step-00000040"
        assert (about["stage"], about["step"], about["tokens"], about["run"]) == (stage, 40, 12345, role)
        assert about["sha256"] == file_sha256(folder / f"{role}.safetensors")
        assert about["bytes"] == (folder / f"{role}.safetensors").stat().st_size
        assert about["packed_from"] == file_sha256(origin / "ema.safetensors")
        assert about["settings"] == {"tokens": "tokens", "loop": {"batch": 32}, "optim": {"lr": 0.25}}
        assert about["parent"] == "origin"
        assert descent_of(folder / f"{role}.safetensors") == {"source": "theirs", "layout": "causal"}
        assert about["parameters"] == sum(t.numel() for t in load_file(origin / "ema.safetensors").values())
        assert 0.001 < about["weights_error"] < 0.02
    for path in folder.rglob("*"):
        assert not path.is_file() or str(shipping.parent).encode() not in path.read_bytes()  # nor where it was made
    small, large = ((shipping / "int8" / f).stat().st_size for f in ("student.safetensors", "teacher.safetensors"))
    whole = (shipping / "student" / "checkpoints" / "step-00000040" / "ema.safetensors").stat().st_size
    assert small < whole / 2.5
    assert large < small


@pytest.mark.parametrize("kind", ["coded", "int8", "bf16"])
@pytest.mark.parametrize("role", ["student", "teacher", "compass"])
def test_it_loads_as_what_the_file_says(shipping: Path, kind: str, role: str) -> None:
    file = shipping / kind / f"{role}.safetensors"
    made = load_compass(shipping / kind, "cpu") if role == "compass" else load_velocity(shipping / kind / role)
    assert (made.sha256, made.checkpoint) == (file_sha256(file), file)
    weights, known = made.net.state_dict(), by_hand(file)
    assert weights.keys() == known.keys()
    for name, tensor in weights.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, known[name]), name
        assert not tensor.requires_grad
    averaged = load_file(shipping / role / "checkpoints" / "step-00000040" / "ema.safetensors")
    for name, tensor in averaged.items():
        if kind == "bf16":
            assert torch.equal(weights[name], tensor.bfloat16().float() if tensor.numel() >= 4096 else tensor)
        else:
            torch.testing.assert_close(weights[name], tensor, rtol=0, atol=float(tensor.abs().max()) / 250)


def test_a_bundle_is_its_student(shipping: Path) -> None:
    texts = tsdfm.load(shipping / "int8", "cpu")
    assert texts.method == "ts-dfm"
    assert texts.velocity.spec == a_spec(step_size=True)
    assert tsdfm.load(str(shipping / "int8" / "teacher"), "cpu").method == "teacher"
    net = a_spec(step_size=True).network()
    net.load_state_dict(by_hand(shipping / "int8" / "student.safetensors"))
    velocity = dataclasses.replace(texts.velocity, net=net.eval())
    same = dataclasses.replace(texts, velocity=velocity).sample(3, 4, 5)
    assert torch.equal(same.tokens, texts.sample(3, 4, 5).tokens)


@pytest.mark.parametrize("kind", ["coded", "int8", "bf16"])
def test_logits_move_by_no_more_than_the_steps_allow(shipping: Path, kind: str) -> None:
    """|Δy| ≤ Σ_w |∂y/∂w| |Δw| to first order, and |Δw| is at most half a step."""
    before, after = load_velocity(shipping / "student"), load_velocity(shipping / kind)
    stored = load_file(shipping / kind / "student.safetensors")
    x_t, t, h = torch.arange(20)[None], torch.tensor([0.5]), torch.tensor([0.125])
    before.net.requires_grad_(True)
    moved = 0.0
    for place, token in ((0, 3), (7, 200), (19, 64)):
        before.net.zero_grad()
        logit = logits(before, x_t, t, h)[0, place, token]
        logit.backward()
        bound = 0.0
        for name, weight in before.net.named_parameters():
            if name + "/scale" in stored:
                step = stored[name + "/scale"].float() / 2
            elif stored[name].dtype == torch.bfloat16:
                step = weight.detach().abs() / 256
            else:
                continue
            bound += 0.0 if weight.grad is None else float((weight.grad.abs() * step).sum())
        change = abs(float(logits(after, x_t, t, h)[0, place, token] - logit.detach()))
        assert change <= 1.05 * bound
        moved = max(moved, change)
    assert moved > 1e-5  # it is not the unpacked network


def logits(velocity: Velocity, x_t: torch.Tensor, t: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = velocity.net(x_t, t, h)
    return out


def test_what_packing_changed_is_written_down(shipping: Path) -> None:
    members = {k: json.loads((shipping / k / "manifest.json").read_text())["members"] for k in ("int8", "bf16")}
    student = tsdfm.load(shipping / "student", "cpu")
    packed = load_velocity(shipping / "int8")
    total, count = 0.0, 0
    for moment in moments_of(student):
        t, h = moment.times(2)
        p, q = (torch.softmax(v(moment.x_t, t, h).double(), -1) for v in (student.velocity, packed))
        total, count = total + float((p * (p / q).log()).sum()), count + moment.x_t.numel()
    told = members["int8"]["student"]["change"]
    assert told["kl_nats"] == pytest.approx(total / count, rel=0.01)
    assert count == 2 * 8 * 20
    for role in ("student", "teacher"):
        small, large = members["bf16"][role]["change"], members["int8"][role]["change"]
        assert 0 < small["kl_nats"] < large["kl_nats"] < 0.05
        assert large["same_likeliest"] > 0.9
    energies = members["int8"]["compass"]["change"]
    assert 0 < energies["difference"] < energies["spread"] / 5
    assert energies["same_pick"] > 0.8


def test_the_card(shipping: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    about = tmp_path / "about.md"
    about.write_text("# My model\n\nTrained on | my diary, é. CC0.\n", encoding="utf-8")
    out = tmp_path / "with"
    more = ["--card", str(about), "--licence", "cc0-1.0", "--defaults.steps", "4", "--defaults.temperature", "0.8"]
    more += ["--defaults.jump", "cumulative"]
    assert main(words(shipping, out, *more)) == 0
    said = capsys.readouterr().out
    total = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    assert f"{out}: {total / 1e6:.2f} MB in all" in said
    assert main(["card", str(out)]) == 0
    card = capsys.readouterr().out
    assert card == (out / "card.md").read_text(encoding="utf-8")
    assert card.startswith("# My model\n\nTrained on | my diary, é. CC0.\n\n## Facts\n")
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["licence"] == "cc0-1.0"
    assert read_bundle(out).words == "# My model\n\nTrained on | my diary, é. CC0."
    for role, member in manifest["members"].items():
        assert f"| {role} | {member['stage']} | {member['parameters']:,} | 2 blocks of width 64, 2 heads |" in card
        assert f"`{member['sha256']}` | `{member['packed_from']}`" in card
        assert f"| {role} | {role} | origin, of theirs | 40 | 12,345 | loop.batch 32, optim.lr 0.25 |" in card
    assert "writes 2 texts in 4 network passes each at temperature 0.8, by the jump `cumulative`." in card
    assert "has written nothing" in (shipping / "int8" / "card.md").read_text()


def damage(folder: Path, how: str) -> None:
    file = folder / ("tokenizer/tokenizer.json" if how == "tokenizer" else "student.safetensors")
    data = file.read_bytes()
    if how == "flipped":
        file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif how == "short":
        file.write_bytes(data[:-9])
    elif how == "gone":
        file.unlink()
    elif how == "tokenizer":
        file.write_bytes(data.replace(b'"byte"', b'"bite"'))
    else:
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest |= {"format": {"format": 3}, "members": {"members": {"student": {}}}}[how]
        (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("flipped", "student.safetensors was changed after it was written (sha256 differs): copy the bundle again"),
        ("short", "bytes instead of"),
        ("gone", "student.safetensors is missing: copy the bundle again"),
        ("tokenizer", "tokenizer.json is damaged"),
        ("format", "has format 3, this version reads 1 and 2: update tsdfm"),
        ("members", "manifest.json is damaged (members.student.stage is missing): copy the bundle again"),
    ],
)
def test_damage_is_one_clear_line(
    shipping: Path, tmp_path: Path, how: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(shipping / "int8", copy)
    damage(copy, how)
    assert main(["sample", str(copy), "--device", "cpu"]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1
    if how in ("flipped", "short", "gone"):
        load_velocity(copy / "teacher")  # what is whole still loads


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--weights", "int8", "--limit-mb", "0.3"], "MB, more than --limit-mb 0.3"),
        (["--limit-mb", "0.1"], "MB, more than --limit-mb 0.1"),
        (["--limit-mb", "0"], "limit_mb must be above 0"),
        (["--name", "a/b"], "letters, digits, dots and dashes"),
        (["--teacher", "teacher-mask"], "has source mask, this model has uniform"),
        (["--teacher", "compass"], "holds no velocity network"),
        (["--compass", "teacher"], "holds no compass"),
        (["--compass", "nowhere"], "no checkpoint or run at nowhere, nor a shipped model of that name"),
        (["--card", "nowhere.md"], "no file at nowhere.md"),
        (["--weights", "int4"], "takes one of coded, int8, bf16"),
        (["--defaults.steps", "0"], "at least 1"),
    ],
)
def test_refusals_leave_nothing_behind(
    shipping: Path,
    tmp_path: Path,
    flags: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(shipping)
    before = sorted(shipping.iterdir())
    assert main([*words(shipping, tmp_path / "out"), *flags]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
    assert sorted(shipping.iterdir()) == before


def test_an_exported_model_is_imported_before_it_is_shipped(
    shipping: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(shipping / "teacher"), "--to", "public"]) == 0
    capsys.readouterr()
    assert main(["ship", "public", "--name", "mine", "--out", "mine"]) == 2
    said = capsys.readouterr().err
    assert (said.count("\n"), "tsdfm import public --out FOLDER" in said) == (1, True)
    assert not Path("mine").exists()
    assert main(["import", "public", "--out", "run"]) == 0
    assert main(["ship", "run", "--name", "mine", "--out", "mine"]) == 0


def test_a_bundle_is_replaced_and_nothing_else_is(
    shipping: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ship(shipping, tmp_path / "out")
    first = (out / "student.safetensors").read_bytes()
    assert main(["ship", str(shipping / "student"), "--name", "alone", "--out", str(out), "--weights", "bf16"]) == 0
    assert (out / "student.safetensors").read_bytes() != first
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert not (out / "teacher.safetensors").exists()
    with pytest.raises(UserError, match="has no 'compass'; it has: student"):
        load_compass(out, "cpu")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("dear diary")
    assert main(words(shipping, tmp_path / "mine")) == 2
    assert (tmp_path / "mine" / "diary.txt").read_text() == "dear diary"
    (out / "tokenizer" / "notes.txt").write_text("mine")
    before = (out / "student.safetensors").read_bytes()
    assert main(words(shipping, out)) == 2
    assert "also holds tokenizer/notes.txt, which is no part of a bundle" in capsys.readouterr().err
    assert (out / "tokenizer" / "notes.txt").read_text() == "mine"
    assert (out / "student.safetensors").read_bytes() == before


def test_weights_that_are_not_finite_are_not_shipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = a_spec(step_size=True)
    run = save(tmp_path / "run", "fs-dfm", spec, 1)
    from tsdfm.store.checkpoint import Store

    bad = spec.network().state_dict()
    bad["head.weight"][3, 4] = float("nan")
    Store(run).save(50, {"model": bad}, {}, json.loads((run / "manifest.json").read_text()))
    assert main(["ship", str(run), "--name", "bad", "--out", str(tmp_path / "out")]) == 2
    assert "head.weight holds numbers that are not finite" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("jump", "said"), [("lat", "unknown jump 'lat'"), ("late:2:1:1", "late")])
def test_a_jump_that_the_student_cannot_be_sampled_by_is_refused(
    shipping: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], jump: str, said: str
) -> None:
    assert main(words(shipping, tmp_path / "out", "--defaults.jump", jump)) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
