"""A compass refreshed on the student's own jumps: it learns, it resumes bitwise, and the one on disk stays the same."""

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch

from training import student_settings
from training import train as run
from tsdfm.compass import load_compass
from tsdfm.compass.exam import true_and_jumps
from tsdfm.compass.loss import nce
from tsdfm.compass.ratio import step_times
from tsdfm.compass.states import walk
from tsdfm.distil.beyond.refresh import Refresher
from tsdfm.distil.beyond.settings import RefreshSettings
from tsdfm.distil.settings import NavigateSettings, StudentLoop, StudentOptim, StudentSettings
from tsdfm.engine.distributed import Processes
from tsdfm.errors import UserError
from tsdfm.flow import RowNoise
from tsdfm.nn.velocity import load_velocity
from tsdfm.store.checkpoint import load_weights
from tsdfm.tokens.loader import Batch
from tsdfm.tokens.rows import TokenRows


def shaped(home: Path, out: Path, every: int = 2, steps: int = 8) -> StudentSettings:
    return student_settings(
        tokens=home / "tokens",
        init_from=home / "teacher-uniform",
        out=out,
        compass=home / "compass-uniform",
        policy="sequence-to-token",
        levels="uniform",
        share=0.5,
        fresh="fit",
        eval_rows=4,
        eval_times=2,
        refresh=RefreshSettings(every=every, lr=1e-3),
        loop=StudentLoop(steps=steps, batch=8, device="cpu", log_every=4, eval_every=0, save_every=4, keep=5),
        optim=StudentOptim(lr=1e-3, warmup=2, ema=0.9),
    )


def test_a_refreshed_run_resumes_bitwise_and_leaves_the_compass_alone(home: Path, tmp_path: Path) -> None:
    before = load_weights(home / "compass-uniform", choose="best")
    whole = run(shaped(home, tmp_path / "whole"))
    shutil.copytree(whole, tmp_path / "part")
    shutil.rmtree(tmp_path / "part/checkpoints/step-00000008")
    run(dataclasses.replace(shaped(home, tmp_path / "part"), resume=True))
    for name in ("model", "ema", "optim", "compass", "compass_optim"):
        one, other = (tmp_path / d / f"checkpoints/step-00000008/{name}.safetensors" for d in ("whole", "part"))
        assert one.read_bytes() == other.read_bytes(), name
    after = load_weights(home / "compass-uniform", choose="best")
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_frozen_compass_gives_another_student(home: Path, tmp_path: Path) -> None:
    fresh, frozen = (run(shaped(home, tmp_path / str(every), every)) for every in (1, 0))
    assert (fresh / "checkpoints/step-00000008/compass.safetensors").is_file()
    assert not (frozen / "checkpoints/step-00000008/compass.safetensors").exists()
    one, other = load_weights(fresh, "model"), load_weights(frozen, "model")
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_it_learns_to_tell_the_true_state_from_the_proposers_jumps(home: Path) -> None:
    teacher, compass = load_velocity(home / "teacher-uniform"), load_compass(home / "compass-uniform", "cpu")
    settings = RefreshSettings(every=1, lr=1e-3)
    refresher = Refresher(compass, settings, teacher.spec, seed=0)
    rows = TokenRows(home / "tokens", "train")
    batch = Batch(torch.from_numpy(rows.take(range(32)).astype("int64")), torch.arange(32))

    def contrast() -> float:
        noise = RowNoise(7, batch.rows)
        states = walk(batch.tokens, teacher.source, teacher.schedule, teacher.spec.anchor, noise)
        t, h = step_times(batch.rows, 7, settings.ratio, noise)
        x, _ = true_and_jumps(states, noise, teacher, t, h, 3)
        energies = refresher.compass.energy(x.flatten(0, 1)).view(x.shape[:2])
        return nce(energies[:, 0], energies[:, 1:]).mean().item()

    world, first = Processes(rank=0, size=1, local_rank=0, device=torch.device("cpu")), contrast()
    for step in range(60):
        assert refresher.due(step)
        more = torch.from_numpy(rows.take([(32 * step + i) % len(rows) for i in range(32)]).astype("int64"))
        refresher.update(Batch(more, torch.arange(32) + 32 * step), teacher.net, world, step)
        assert not refresher.due(step)  # once a step, however many micro-batches ask
    assert contrast() < first - 0.05
    assert torch.equal(compass.energy(batch.tokens), load_compass(home / "compass-uniform", "cpu").energy(batch.tokens))


def test_what_cannot_be_refreshed(home: Path, tmp_path: Path) -> None:
    good = shaped(home, tmp_path)
    with pytest.raises(UserError, match="needs a selector"):
        dataclasses.replace(good, navigate=NavigateSettings(selector="random"))
    with pytest.raises(UserError, match="not with fsdp"):
        dataclasses.replace(good, loop=dataclasses.replace(good.loop, parallel="fsdp"))
