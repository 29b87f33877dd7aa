"""What a network is, through a manifest and back; which networks belong together; loading a run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_nets import save_run, tiny_shape, tiny_spec, tiny_velocity

from tsdfm.errors import UserError
from tsdfm.flow import Mask, Uniform
from tsdfm.flow.schedule import Cosine
from tsdfm.nn.velocity import VelocitySpec, as_model, load_velocity, run_folder, spec_in
from tsdfm.settings import build
from tsdfm.store.files import file_sha256, write_json
from tsdfm.store.manifest import read_manifest, write_manifest


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"source": "uniform", "schedule": "cosine", "anchor": 0},
        {"step_size": True, "schedule": "poly:2.5", "shape": tiny_shape(checkpoint=True, dropout=0.25)},
    ],
)
def test_spec_round_trip(tmp_path: Path, given: dict[str, Any]) -> None:
    spec = tiny_spec(**given)
    assert build(VelocitySpec, json.loads(json.dumps(spec.plain()))) == spec
    write_manifest(tmp_path, stage="teacher", settings=None, inputs={}, extra={"model": spec.plain()})
    assert spec_in(read_manifest(tmp_path), tmp_path) == spec


def test_spec_makes_its_parts() -> None:
    spec = tiny_spec(source="uniform", schedule="cosine")
    assert spec.flow_source() == Uniform(257)
    assert spec.flow_schedule() == Cosine()
    assert spec.network().embedding.num_embeddings == 257
    assert not spec.network().step_size
    masked = tiny_spec(step_size=True)
    assert masked.flow_source() == Mask(257)
    assert (masked.network().embedding.num_embeddings, masked.network().head.out_features) == (258, 257)
    assert masked.network().step_size


@pytest.mark.parametrize(
    ("name", "value"), [("vocab", 300), ("tokenizer", "abc"), ("source", "uniform"), ("length", 21), ("anchor", 0)]
)
def test_what_does_not_match_is_refused(name: str, value: Any) -> None:
    spec, other = tiny_spec(), tiny_spec(**{name: value})
    with pytest.raises(UserError, match=f"the teacher has {name} {value}, this model has {getattr(spec, name)}"):
        spec.match(other, "the teacher")


def test_what_may_differ() -> None:
    other = tiny_spec(shape=tiny_shape(depth=4), step_size=True, schedule="cosine")
    tiny_spec().match(other, "the teacher")


def test_a_folder_without_a_network(tmp_path: Path) -> None:
    write_manifest(tmp_path, stage="elsewhere", settings=None, inputs={})
    with pytest.raises(UserError, match=r"holds no velocity network .*'elsewhere'"):
        spec_in(read_manifest(tmp_path), tmp_path)
    with pytest.raises(UserError, match="no folder"):
        spec_in(read_manifest(tmp_path / "nowhere"), tmp_path / "nowhere")


def test_load_a_run(tmp_path: Path) -> None:
    spec = tiny_spec(source="uniform")
    nets = save_run(tmp_path / "run", spec, steps=(3, 12))
    x_t, t, h = torch.arange(20)[None], torch.tensor([0.4]), torch.tensor([0.1])
    newest = tmp_path / "run" / "checkpoints" / "step-00000012"
    for which, number in (("ema", 112), ("model", 12)):
        made = load_velocity(tmp_path / "run", which=which)
        assert made.spec == spec
        assert made.checkpoint == newest
        assert made.sha256 == file_sha256(newest / f"{which}.safetensors")
        assert torch.equal(made(x_t, t, h), nets[number](x_t, t))
        assert not made.net.training
        assert not any(weight.requires_grad for weight in made.net.parameters())
    older = load_velocity(newest.with_name("step-00000003"))
    assert torch.equal(older(x_t, t, h), nets[103](x_t, t))
    write_json(newest.parent / "best.json", {"step": 3})
    assert load_velocity(tmp_path / "run", choose="best").checkpoint == newest.with_name("step-00000003")
    assert run_folder(newest) == tmp_path / "run"
    assert run_folder(tmp_path / "run") == tmp_path / "run"


def test_a_run_without_an_average(tmp_path: Path) -> None:
    nets = save_run(tmp_path, tiny_spec(), ema=False)
    made = load_velocity(tmp_path, which="ema")
    assert torch.equal(made.net.head.weight, nets[1].head.weight)
    assert made.sha256 == file_sha256(tmp_path / "checkpoints" / "step-00000001" / "model.safetensors")


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    save_run(tmp_path, tiny_spec())
    checkpoint = tmp_path / "checkpoints" / "step-00000001"
    manifest = read_manifest(checkpoint)
    manifest["model"]["shape"]["depth"] = 3
    write_json(checkpoint / "manifest.json", manifest)
    with pytest.raises(UserError, match=r"do not fit its manifest: .*blocks\.2"):
        load_velocity(tmp_path)


def test_only_a_step_size_network_sees_h() -> None:
    x_t, t = torch.arange(20)[None], torch.tensor([0.4], dtype=torch.float64)
    for step_size in (False, True):
        velocity = tiny_velocity(tiny_spec(step_size=step_size))
        small, large = (velocity(x_t, t, torch.tensor([h], dtype=torch.float64)) for h in (0.1, 0.9))
        assert torch.equal(small, large) != step_size
        model = as_model(velocity.net, velocity.spec)
        assert torch.equal(model(x_t, t, torch.tensor([0.1], dtype=torch.float64)), small)
        assert velocity.device == torch.device("cpu")


def test_a_network_may_be_told_the_noise() -> None:
    """σ = −log(ε + (1−ε)κ): the log-linear noise of public checkpoints, and a field that older ones need not have."""
    t = torch.tensor([0.0, 0.25, 1.0])
    told, none = tiny_spec(clock="sigma").told(t, t)
    assert none is None
    assert told.dtype == t.dtype
    assert told.tolist() == pytest.approx([-math.log(1 - (1 - 1e-3) * (1 - x)) for x in t.tolist()], abs=1e-6)
    assert torch.equal(tiny_spec().told(t, t)[0], t)
    assert not tiny_spec(clock="sigma", time=False).told(t, t)[0].any()
    assert "clock" not in tiny_spec().identity()
    assert tiny_spec(clock="sigma").identity()["clock"] == "sigma"
    with pytest.raises(UserError, match="clock takes one of t, sigma"):
        build(VelocitySpec, {**tiny_spec().plain(), "clock": "noise"})
