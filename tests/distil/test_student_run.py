"""The whole stage on stories: teacher → compass → FS-DFM → TS-DFM, its resume, and guided generation."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import tsdfm
from training import student_settings, trainer
from training import train as run
from tsdfm.cli import main
from tsdfm.compass import load_compass
from tsdfm.distil.settings import NavigateSettings, StudentLoop, StudentOptim, StudentSettings
from tsdfm.errors import UserError
from tsdfm.flow import RowNoise, elbo_rows
from tsdfm.nn.velocity import load_velocity, spec_in
from tsdfm.pipeline.done import is_finished
from tsdfm.samples.guide import Guide
from tsdfm.samples.run import run as write_samples
from tsdfm.samples.settings import SampleSettings
from tsdfm.store.checkpoint import load_weights
from tsdfm.store.files import file_sha256, write_json
from tsdfm.store.manifest import read_manifest
from tsdfm.tokens.rows import TokenRows

Made = tuple[Path, str, StudentSettings, StudentSettings]
STEPS, MIDDLE = 24, 12
SOURCES = ("uniform", "mask")


def settings_for(home: Path, source: str, out: Path, **given: Any) -> StudentSettings:
    made = {
        "tokens": home / "tokens",
        "init_from": home / f"teacher-{source}",
        "out": out,
        "levels": "uniform",
        "share": 0.5,
        "fresh": "fit",
        "eval_rows": 16,
        "eval_times": 4,
        "probe_every": 4,
        "loop": StudentLoop(
            steps=STEPS, batch=8, device="cpu", log_every=4, eval_every=MIDDLE, save_every=MIDDLE, keep=5, seed=3
        ),
        "optim": StudentOptim(lr=2e-3, warmup=4, ema=0.9),
    }
    return student_settings(**{**made, **given})


def lines(out: Path, kind: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    timeless = [{k: v for k, v in line.items() if k not in ("tokens_per_s", "seconds", "time")} for line in found]
    return [line for line in timeless if kind in line]


def bound(folder: Path, home: Path) -> float:
    """The held-out ELBO with many times."""
    model = load_velocity(folder)
    x_1 = torch.from_numpy(TokenRows(home / "tokens", "valid").take(range(16)).astype("int64"))
    noise, given = RowNoise(0, torch.arange(16)), torch.arange(48) < 1
    bound = elbo_rows(model, x_1, model.schedule, model.source, 48, noise, h=1 / 1024, given=given)
    return bound.mean().item()


def same_files(one: Path, other: Path) -> bool:
    names = ("model.safetensors", "ema.safetensors", "optim.safetensors")
    last = f"checkpoints/step-{STEPS:08d}"
    return all((one / last / name).read_bytes() == (other / last / name).read_bytes() for name in names)


@pytest.fixture(scope="module", params=SOURCES)
def made(request: pytest.FixtureRequest, home: Path) -> tuple[Path, str, StudentSettings, StudentSettings]:
    """FS-DFM from the teacher, TS-DFM from FS-DFM."""
    source = request.param
    blind = settings_for(home, source, home / f"fs-dfm-{source}")
    shaped = settings_for(
        home,
        source,
        home / f"ts-dfm-{source}",
        init_from=blind.out,
        policy="sequence-to-token",
        compass=home / f"compass-{source}",
    )
    assert run(blind) == blind.out
    assert run(shaped) == shaped.out
    return home, source, blind, shaped


def test_students_learn_and_say_what_they_are(made: tuple[Path, str, StudentSettings, StudentSettings]) -> None:
    home, source, blind, shaped = made
    for settings, method in ((blind, "fs-dfm"), (shaped, "ts-dfm")):
        manifest = read_manifest(settings.out)
        assert (manifest["stage"], manifest["finished"], manifest["seed"]) == (method, True, 3)
        spec = spec_in(read_manifest(settings.out), settings.out)
        assert (spec.step_size, spec.source, spec.anchor) == (True, source, 1)
        model = tsdfm.load(settings.out, "cpu")
        assert model.method == method
        texts = model.sample(n=2, steps=4, prefix="Mia has").texts
        assert all(text.startswith("Mia has") for text in texts)
        assert bound(settings.out, home) < bound(home / f"teacher-{source}", home) + 0.3  # it began as its teacher
    losses = [line["loss"] for line in lines(blind.out, "loss")]
    assert len(losses) == STEPS // 4


def test_navigation_is_logged(made: tuple[Path, str, StudentSettings, StudentSettings]) -> None:
    _, _, blind, shaped = made
    assert not any(name.startswith("nav/") for line in lines(blind.out, "loss") for name in line)
    for line in lines(shaped.out, "elbo"):
        assert 0.5 < line["nav/navigated"] < 1
        assert 0 < line["nav/accept"] <= 1
        assert line["nav/scored"] == pytest.approx(6)
        assert line["nav/energy_navigated"] < line["nav/energy_blind"]
    assert all("nav/navigated" in line and "kl" in line for line in lines(shaped.out, "loss"))


def test_init_copies_what_is_shared(home: Path, tmp_path: Path) -> None:
    teacher = load_weights(home / "teacher-uniform")
    loop = StudentLoop(steps=1, batch=4, device="cpu")
    still = StudentOptim(lr=1e-12, warmup=0, ema=0.5)
    for fresh in ("random", "fit"):
        out = run(settings_for(home, "uniform", tmp_path / fresh, fresh=fresh, loop=loop, optim=still))
        student = load_weights(out, "model")
        new = student.keys() - teacher.keys()
        assert {name.split(".")[0] for name in new} == {"step", "join", "fuser", "blocks"}
        assert all(torch.allclose(student[name], teacher[name], atol=1e-6) for name in teacher)
    again = run(settings_for(home, "uniform", tmp_path / "second", init_from=tmp_path / "fit", loop=loop, optim=still))
    first, second = load_weights(tmp_path / "fit"), load_weights(again, "model")
    assert all(torch.allclose(first[name], second[name], atol=1e-6) for name in first)


@pytest.mark.parametrize("name", ["mine", "mine/compass"])
def test_a_compass_can_start_from_a_bundles(home: Path, made: Made, tmp_path: Path, name: str) -> None:
    _, source, blind, _ = made
    teacher, old = home / f"teacher-{source}", home / f"compass-{source}"
    ship = ["ship", str(blind.out), "--teacher", str(teacher), "--compass", str(old), "--name", "mine"]
    assert main([*ship, "--weights", "bf16", "--out", str(tmp_path / "mine")]) == 0
    size = ["--net.width", "32", "--net.depth", "1", "--net.heads", "2", "--net.cond", "16"]
    loop = ["--loop.steps", "1", "--loop.batch", "4", "--loop.device", "cpu", "--optim.lr", "1e-12", "--optim.ema", "0"]
    given = ["--tokens", str(home / "tokens"), "--teacher", str(tmp_path / "mine"), "--init-from", str(tmp_path / name)]
    assert main(["compass", *given, "--out", str(tmp_path / "new"), *size, *loop, "--eval-rows", "4"]) == 0
    begun, packed = load_weights(tmp_path / "new", "model"), load_compass(tmp_path / "mine", "cpu").net.state_dict()
    assert begun.keys() == packed.keys()
    assert all(torch.allclose(begun[key], weight, atol=1e-6) for key, weight in packed.items())
    file = tmp_path / "mine" / "compass.safetensors"
    assert read_manifest(tmp_path / "new")["parent"] == {"path": str(file), "sha256": file_sha256(file)}
    wrong = [*given[:-1], str(tmp_path / "mine" / "teacher")]
    assert main(["compass", *wrong, "--out", str(tmp_path / "no"), *size, *loop]) == 2


def test_a_bundle_can_be_trained_on(home: Path, made: Made, tmp_path: Path) -> None:
    """Its folder means its student (FS-DFM init), FOLDER/teacher its teacher (DFM init)."""
    _, source, blind, _ = made
    ship = ["ship", str(blind.out), "--teacher", str(home / f"teacher-{source}"), "--name", "mine"]
    assert main([*ship, "--weights", "bf16", "--out", str(tmp_path / "mine")]) == 0
    loop, still = StudentLoop(steps=1, batch=4, device="cpu"), StudentOptim(lr=1e-12, warmup=0, ema=0.5)
    for name, role in (("mine", "student"), ("mine/teacher", "teacher")):
        given = settings_for(home, source, tmp_path / role, init_from=tmp_path / name, loop=loop, optim=still)
        begun = load_weights(run(given), "model")
        packed = load_velocity(tmp_path / name).net.state_dict()
        assert packed.keys() == begun.keys() or role == "teacher"
        assert all(torch.allclose(begun[key], weight, atol=1e-6) for key, weight in packed.items())
        file = tmp_path / "mine" / f"{role}.safetensors"
        parent = read_manifest(given.out)["parent"]
        assert parent == {"path": str(file), "sha256": file_sha256(file)}
        assert run(dataclasses.replace(given, resume=True)) == given.out
        assert is_finished(given)  # a pipeline would leave it as it is
    with pytest.raises(UserError, match="needs --teacher"):
        run(settings_for(home, source, tmp_path / "no", init_from=tmp_path / "mine", loop=loop, target="teacher"))
    own = settings_for(home, source, tmp_path / "own", init_from=tmp_path / "mine/teacher", loop=loop, target="teacher")
    assert run(own) == own.out


def test_a_resumed_run_is_the_unbroken_one(
    made: tuple[Path, str, StudentSettings, StudentSettings], tmp_path: Path
) -> None:
    """The folder as a kill just after the middle checkpoint leaves it."""
    for settings in made[2:]:
        out = tmp_path / trainer(settings).name
        shutil.copytree(settings.out, out)
        shutil.rmtree(out / "checkpoints" / f"step-{STEPS:08d}")
        run(dataclasses.replace(settings, out=out, resume=True, checkpoint=True, record=True))
        assert same_files(settings.out, out)
        assert lines(out, "elbo") == lines(settings.out, "elbo")
        assert lines(out, "loss") == lines(settings.out, "loss")


def test_changed_inputs_are_refused_unless_asked_for(
    made: tuple[Path, str, StudentSettings, StudentSettings], tmp_path: Path
) -> None:
    home, source, blind, shaped = made
    if source == "mask":
        pytest.skip("once is enough")
    compass = tmp_path / "compass"
    shutil.copytree(home / "compass-uniform", compass)
    write_json(compass / "manifest.json", {**read_manifest(compass), "created": "later"})
    changed = dataclasses.replace(shaped, compass=compass, resume=True)
    with pytest.raises(UserError, match=r"cannot resume .*compass"):
        run(changed)
    run(dataclasses.replace(changed, allow_changed=True))
    with pytest.raises(UserError, match=r"cannot resume .*init_from"):
        run(dataclasses.replace(shaped, init_from=home / "teacher-uniform", resume=True))
    for change in ({"policy": "token"}, {"average": "probabilities"}, {"share": 0.4}):
        with pytest.raises(UserError, match="cannot resume"):
            run(dataclasses.replace(shaped, resume=True, **change))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="divergence was reverse and is now forward; use what it was"):
        run(dataclasses.replace(shaped, resume=True, divergence="forward"))
    other = dataclasses.replace(shaped.navigate, k=3)
    with pytest.raises(UserError, match=r"cannot resume .*navigate\.k"):
        run(dataclasses.replace(shaped, resume=True, navigate=other))
    with pytest.raises(UserError, match="already has checkpoints"):
        run(blind)


def test_what_does_not_belong_together(home: Path, tmp_path: Path) -> None:
    settings = settings_for(home, "uniform", tmp_path / "out", policy="token", compass=home / "compass-mask")
    with pytest.raises(UserError, match="source"):
        run(settings)
    with pytest.raises(UserError, match="holds no velocity network"):
        run(dataclasses.replace(settings, init_from=home / "compass-uniform"))
    with pytest.raises(UserError, match="holds no compass"):
        run(dataclasses.replace(settings, compass=home / "teacher-uniform"))


def test_other_targets_run(home: Path, tmp_path: Path) -> None:
    """Everything beyond the defaults, one step each; the control needs no compass, the name is what one likes."""
    loop = StudentLoop(steps=2, batch=4, device="cpu", micro=2, precision="bf16")
    for number, given in enumerate(
        (
            {"target": "teacher", "estimator": "heun", "name": "control"},
            {"estimator": "euler", "average": "probabilities", "levels": "inverse", "share": None},
            {"policy": "sequence-to-token", "navigate": NavigateSettings(selector="random", tau=0.0, refine="jumped")},
        )
    ):
        out = run(settings_for(home, "mask", tmp_path / str(number), loop=loop, **given))
        assert read_manifest(out)["stage"] == ("control", "fs-dfm", "ts-dfm")[number]
        assert lines(out, "loss")[-1]["skipped"] == 0
    student = settings_for(home, "mask", tmp_path / "last", loop=loop, init_from=tmp_path / "0", target="teacher")
    with pytest.raises(UserError, match="needs --teacher"):
        run(student)
    run(dataclasses.replace(student, teacher=home / "teacher-mask"))


def test_guided_generation(
    made: tuple[Path, str, StudentSettings, StudentSettings], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All four policies on any checkpoint, with passes and compass calls counted; energies fall."""
    home, source, blind, _ = made
    compass = load_compass(home / f"compass-{source}", "cpu")
    for folder in (blind.out, home / f"teacher-{source}"):
        model = tsdfm.load(folder, "cpu")
        plain = model.sample(n=12, steps=8, seed=1, prefix="Mia has")
        energy = {}
        for policy in ("blind", "sequence", "token", "sequence-to-token"):
            made_texts = model.sample(n=12, steps=8, seed=1, prefix="Mia has", guide=Guide(policy, compass))
            assert made_texts.nfe == 8
            calls = {"blind": 0, "sequence": 5, "token": 2, "sequence-to-token": 6}[policy]
            assert made_texts.compass_calls == 6 * calls
            assert all(text.startswith("Mia has") for text in made_texts.texts)
            assert bool((made_texts.tokens < model.velocity.spec.vocab).all())
            energy[policy] = compass.energy(made_texts.tokens).mean().item()
            if policy == "blind":
                assert torch.equal(made_texts.tokens, plain.tokens)
        assert energy["sequence"] < energy["blind"]
        assert energy["sequence-to-token"] < energy["blind"]
        alone = model.sample(
            n=1,
            steps=8,
            seed=1,
            first=5,
            guide=Guide("sequence-to-token", compass, NavigateSettings(entropy="vocab")),
        )
        among = model.sample(
            n=12, steps=8, seed=1, guide=Guide("sequence-to-token", compass, NavigateSettings(entropy="vocab")), batch=7
        )
        assert torch.equal(alone.tokens[0], among.tokens[5])
        assert 0 < among.navigation["nav/accept"] <= 1
    out = tmp_path / "texts.jsonl"
    asked = SampleSettings(model=blind.out, n=2, steps=4, guide="token", compass=compass.checkpoint, out=out)
    write_samples(asked)
    assert "6 compass calls a text" in capsys.readouterr().err
    with pytest.raises(UserError, match="needs --compass"):
        write_samples(dataclasses.replace(asked, compass=None))
    many = NavigateSettings(blocks=1000)
    with pytest.raises(UserError, match=r"navigate.blocks is 1000, and a text has \d+ tokens"):
        write_samples(dataclasses.replace(asked, guide="sequence", navigate=many))
