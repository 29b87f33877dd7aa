"""The whole stage on stories: it learns, resumes bitwise, and starts from another run without being one."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import tsdfm
from training import DFM
from training import train as run
from tsdfm.corpus.run import run as make_corpus
from tsdfm.corpus.settings import CorpusSettings
from tsdfm.engine.distributed import Processes
from tsdfm.engine.settings import LoopSettings, OptimSettings
from tsdfm.engine.task import Context
from tsdfm.errors import UserError
from tsdfm.methods.dfm import DFMSettings
from tsdfm.nn.settings import NetSettings
from tsdfm.nn.velocity import spec_in
from tsdfm.store.checkpoint import load_weights
from tsdfm.store.files import file_sha256, write_json
from tsdfm.store.manifest import read_manifest
from tsdfm.store.packed import pack, unpack
from tsdfm.tokens.rows import TokenRows
from tsdfm.tokens.run import run as make_tokens
from tsdfm.tokens.settings import TokensSettings

STEPS, MIDDLE = 40, 20
LOOP = LoopSettings(
    steps=STEPS, batch=16, device="cpu", log_every=10, eval_every=MIDDLE, save_every=MIDDLE, keep=5, seed=3
)
SETTINGS = DFMSettings(
    tokens=Path("tokens"),
    out=Path("out"),
    eval_rows=16,
    eval_times=4,
    net=NetSettings(width=48, depth=2, heads=2, cond=16, dropout=0.1),
    loop=LOOP,
    optim=OptimSettings(lr=4e-3, warmup=5, ema=0.9),
)


def settings_for(tokens: Path, out: Path, steps: int = STEPS, **given: Any) -> DFMSettings:
    loop = dataclasses.replace(LOOP, steps=steps)
    return dataclasses.replace(SETTINGS, **{"tokens": tokens, "out": out, "loop": loop, **given})


def lines(out: Path, kind: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    timeless = [{k: v for k, v in line.items() if k not in ("tokens_per_s", "seconds", "time")} for line in found]
    return [line for line in timeless if kind in line.values() or kind in line]


def knowing_nothing(settings: DFMSettings) -> float:
    """The bound of a fresh network, whose logits are all zero."""
    task = DFM.task(settings, spec_in(read_manifest(settings.out), settings.out), TokenRows(settings.tokens, "valid"))
    task.bind(Context(ema=None, world=Processes()))
    return task.evaluate(task.model.eval(), 0)["elbo"]


def same_files(one: Path, other: Path) -> bool:
    names = ("model.safetensors", "ema.safetensors", "optim.safetensors")
    last = f"checkpoints/step-{STEPS:08d}"
    return all((one / last / name).read_bytes() == (other / last / name).read_bytes() for name in names)


@pytest.fixture(scope="module", params=["uniform", "mask"])
def trained(request: pytest.FixtureRequest, tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> DFMSettings:
    """An unbroken run."""
    settings = settings_for(tokens, tmp_path_factory.mktemp(request.param) / "run", source=request.param)
    assert run(settings) == settings.out
    return settings


def test_it_learns(trained: DFMSettings) -> None:
    found = [line["elbo"] for line in lines(trained.out, "elbo")]
    assert len(found) == 2
    assert found[-1] < 0.8 * found[0]
    assert found[-1] < 0.6 * knowing_nothing(trained)
    losses = [line["loss"] for line in lines(trained.out, "loss")]
    assert losses[-1] < 0.7 * losses[0]


def test_it_leaves_a_model(trained: DFMSettings) -> None:
    manifest = read_manifest(trained.out)
    assert manifest["stage"] == "teacher"
    assert manifest["finished"] is True
    assert manifest["seed"] == 3
    spec = spec_in(read_manifest(trained.out), trained.out)
    assert (spec.source, spec.length, spec.anchor, spec.step_size) == (trained.source, 56, 1, False)
    made = tsdfm.load(trained.out, "cpu").sample(n=2, steps=4, prefix="Mia has")
    assert all(text.startswith("Mia has") for text in made.texts)


def test_a_loaded_model_has_the_bound_that_its_training_logged(trained: DFMSettings, tmp_path: Path) -> None:
    model = tsdfm.load(trained.out, "cpu")
    nats = model.bound(trained.tokens, rows=trained.eval_rows, times=trained.eval_times, seed=3)
    assert nats.shape == (trained.eval_rows,)
    assert nats.mean().item() == pytest.approx(lines(trained.out, "elbo")[-1]["elbo"], rel=1e-6)
    with pytest.raises(UserError, match="at least one row, not 0"):
        model.bound(trained.tokens, rows=0)
    with pytest.raises(UserError, match="nowhere"):
        model.bound(tmp_path / "nowhere")


def test_a_resumed_run_is_the_unbroken_one(trained: DFMSettings, tmp_path: Path) -> None:
    """The folder as a kill just after the middle checkpoint leaves it."""
    out = tmp_path / "run"
    shutil.copytree(trained.out, out)
    shutil.rmtree(out / "checkpoints" / f"step-{STEPS:08d}")
    run(dataclasses.replace(trained, out=out, resume=True))
    assert same_files(trained.out, out)
    assert lines(out, "elbo") == lines(trained.out, "elbo")
    assert lines(out, "loss") == lines(trained.out, "loss")


def test_saving_memory_does_not_make_it_another_run(trained: DFMSettings, tmp_path: Path) -> None:
    """Out of memory in the middle: one resumes with recomputed activations, and the numbers stay the same."""
    out = tmp_path / "run"
    shutil.copytree(trained.out, out)
    shutil.rmtree(out / "checkpoints" / f"step-{STEPS:08d}")
    net = dataclasses.replace(trained.net, checkpoint=True)
    run(dataclasses.replace(trained, out=out, net=net, resume=True))
    assert same_files(trained.out, out)


def test_another_objective_is_another_run(trained: DFMSettings) -> None:
    for change in ({"loss": "generalised-kl"}, {"schedule": "cosine"}, {"time_power": 0.5}):
        with pytest.raises(UserError, match=f"cannot resume .*{next(iter(change))}"):
            run(dataclasses.replace(trained, resume=True, **change))
    other = dataclasses.replace(trained.optim, rule="muon" if trained.optim.rule == "adamw" else "adamw")
    with pytest.raises(UserError, match=r"cannot resume .*: optim\.rule was"):  # not what only one of the two has
        run(dataclasses.replace(trained, resume=True, optim=other))
    wider = dataclasses.replace(trained.net, width=64)
    with pytest.raises(UserError, match="cannot resume"):
        run(dataclasses.replace(trained, resume=True, net=wider))


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokens with a tokenizer of their own."""
    home = tmp_path_factory.mktemp("others")
    corpus = make_corpus(CorpusSettings(out=home / "corpus", name="world:small", limit=60, valid=0.1, seed=1))
    return make_tokens(
        TokensSettings(corpus=corpus, out=home / "tokens", vocab_size=370, length=56, layout="document", workers=1)
    )


def test_a_finished_run_is_not_written_over(trained: DFMSettings, others: Path) -> None:
    before = {path: path.read_bytes() for path in trained.out.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="already has checkpoints"):
        run(trained)
    with pytest.raises(UserError, match="already has checkpoints"):
        run(dataclasses.replace(trained, tokens=others))
    with pytest.raises(UserError, match="cannot resume"):
        run(dataclasses.replace(trained, tokens=others, resume=True))
    assert {path: path.read_bytes() for path in trained.out.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("resume", [False, True])
def test_init_from_is_not_resume(trained: DFMSettings, tmp_path: Path, resume: bool) -> None:
    """A new run, from step 0 with a fresh optimiser, whose weights begin as another's averaged ones.

    With `resume` and nothing to resume yet (a pipeline says it always), it is the same.
    """
    new = settings_for(trained.tokens, tmp_path / "new", 1, source=trained.source, init_from=trained.out, resume=resume)
    tiny_step = dataclasses.replace(new, optim=dataclasses.replace(new.optim, lr=1e-12, weight_decay=0.0, ema=0.0))
    run(tiny_step)
    assert [path.name for path in (tmp_path / "new" / "checkpoints").glob("step-*")] == ["step-00000001"]
    averaged, begun = load_weights(trained.out, "ema"), load_weights(tmp_path / "new", "model")
    for name, weight in averaged.items():
        torch.testing.assert_close(begun[name], weight, rtol=0, atol=1e-9)
    plain = load_weights(trained.out, "model")
    assert not all(torch.equal(plain[name], averaged[name]) for name in plain)
    assert read_manifest(tmp_path / "new")["parent"]["path"] == str(trained.out)


def test_a_bundle_can_be_trained_on(trained: DFMSettings, tmp_path: Path) -> None:
    """Weights travel between machines as a bundle; a run that goes on from one says from which file."""
    (tmp_path / "mine").mkdir()
    file = tmp_path / "mine" / "teacher.safetensors"
    save_file(pack(load_weights(trained.out, "ema"), "int8"), file)
    about = {**read_manifest(trained.out), "sha256": file_sha256(file), "bytes": file.stat().st_size}
    write_json(tmp_path / "mine" / "manifest.json", {"stage": "ship", "format": 1, "members": {"teacher": about}})
    new = settings_for(
        trained.tokens, tmp_path / "new", 1, source=trained.source, init_from=tmp_path / "mine" / "teacher"
    )
    run(dataclasses.replace(new, optim=dataclasses.replace(new.optim, lr=1e-12, weight_decay=0.0, ema=0.0)))
    packed, begun = unpack(load_file(file)), load_weights(tmp_path / "new", "model")
    for name, weight in packed.items():
        torch.testing.assert_close(begun[name], weight, rtol=0, atol=1e-9)
    assert read_manifest(tmp_path / "new")["parent"] == {"path": str(file), "sha256": file_sha256(file)}


def test_a_run_of_another_length_is_not_declared_finished(trained: DFMSettings, tokens: Path, tmp_path: Path) -> None:
    """Its checkpoint in the middle is no finished run of that many steps."""
    out = tmp_path / "run"
    shutil.copytree(trained.out, out)
    shutil.rmtree(out / "checkpoints" / f"step-{STEPS:08d}")
    before = (out / "manifest.json").read_bytes()
    half = settings_for(tokens, out, MIDDLE, source=trained.source, resume=True)
    with pytest.raises(UserError, match=rf"has {MIDDLE} steps of {STEPS} already, and loop\.steps is {MIDDLE}"):
        run(half)
    assert (out / "manifest.json").read_bytes() == before


def test_init_from_refusals(trained: DFMSettings, tokens: Path, others: Path, tmp_path: Path) -> None:
    new = settings_for(tokens, tmp_path / "new", 1, source=trained.source, init_from=trained.out)
    with pytest.raises(UserError, match="has vocab 380, this model has 370: they do not belong together"):
        run(dataclasses.replace(new, tokens=others))
    other_source = "mask" if trained.source == "uniform" else "uniform"
    with pytest.raises(UserError, match=f"has source {trained.source}"):
        run(dataclasses.replace(new, source=other_source))
    with pytest.raises(UserError, match=r"network of another size: add --net\.width \d+ to start"):
        run(dataclasses.replace(new, net=dataclasses.replace(new.net, width=64)))
    heads = new.net.shape().heads  # of which no tensor tells: the weights would fit
    with pytest.raises(UserError, match=f"network of another size: add --net.heads {heads} to start"):
        run(dataclasses.replace(new, net=dataclasses.replace(new.net, heads=2 * heads)))
    with pytest.raises(UserError, match="no checkpoint or run"):
        run(dataclasses.replace(new, init_from=tmp_path / "nowhere"))
    assert not (tmp_path / "new").exists()  # nothing was begun


def test_the_generalised_kl_learns_too(tokens: Path, tmp_path: Path) -> None:
    settings = settings_for(tokens, tmp_path / "run", source="mask", loss="generalised-kl", schedule="cosine")
    run(settings)
    found = [line["elbo"] for line in lines(settings.out, "elbo")]
    assert found[-1] < found[0] < 0.9 * knowing_nothing(settings)
