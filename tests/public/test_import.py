"""Public checkpoints become runs: each layout, the inverse, and a forward from the formulas in float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.public.public_files import (
    BLOCKS,
    BPE,
    CONFIGS,
    HEADS,
    NESTED,
    TOKENS,
    D,
    public_state,
    rows_of,
    write_public,
)
from torch import Tensor

import tsdfm
from tsdfm.errors import UserError
from tsdfm.methods import files, method
from tsdfm.nn.settings import NetSettings
from tsdfm.nn.velocity import VelocitySpec, load_velocity
from tsdfm.public.export import run as export
from tsdfm.public.export import write_folder
from tsdfm.public.model import read_public
from tsdfm.public.run import run as import_
from tsdfm.public.settings import ExportSettings, ImportSettings

KINDS = ("mdlm", "sdtt", "sedd", "duo", "dfm", "fs-dfm")
THERE = [kind for kind in KINDS if kind in files()]
WORDS: dict[str, dict[str, Any]] = {"fs-dfm": {"part": "student_model"}}


def imported(kind: str, tmp_path: Path) -> Path:
    folder = write_public(kind, tmp_path / "public")
    return import_(ImportSettings(source=str(folder), out=tmp_path / "run", **WORDS.get(kind, {})))


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:]) * weight


def scalar(state: dict[str, Tensor], name: str, value: float) -> Tensor:
    rates = torch.tensor([10_000 ** (-j / 128) for j in range(128)], dtype=torch.float64)
    features = torch.cat([(value * rates).cos(), (value * rates).sin()])
    hidden = torch.nn.functional.silu(features @ state[f"{name}.mlp.0.weight"].T + state[f"{name}.mlp.0.bias"])
    return hidden @ state[f"{name}.mlp.2.weight"].T + state[f"{name}.mlp.2.bias"]


def public_forward(kind: str, state: dict[str, Tensor], tokens: Tensor, value: float, h: float) -> Tensor:
    """Logits [L, R] of one row in float64: q, k, v, then heads; rotation in split halves; shift, scale, gate."""
    state = {name.removeprefix("backbone."): tensor.double() for name, tensor in state.items()}
    apple, silu = kind in ("dfm", "fs-dfm"), torch.nn.functional.silu
    cond = scalar(state, "time_embedding" if apple else "sigma_map", value)
    if kind == "fs-dfm":
        both = torch.cat([cond, scalar(state, "dt_embedding", h)])
        cond = both @ state["time_condition_fuser.weight"].T + state["time_condition_fuser.bias"]
    cond = silu(cond)

    def modulation(place: str, chunks: int) -> tuple[Tensor, ...]:
        own = cond
        if kind == "fs-dfm":
            own = silu(cond @ state[f"{place}.condition_fuser.weight"].T + state[f"{place}.condition_fuser.bias"])
        made = own @ state[f"{place}.adaLN_modulation.weight"].T + state[f"{place}.adaLN_modulation.bias"]
        return made.chunk(chunks)

    x = state["vocab_embed.weight" if apple else "vocab_embed.embedding"][tokens]
    length, size = len(tokens), D // HEADS
    angles = torch.arange(length).double()[:, None] * 10_000 ** (-torch.arange(0, size, 2).double() / size)
    for i in range(BLOCKS):
        place = f"blocks.{i}"
        s1, c1, g1, s2, c2, g2 = modulation(place, 6)
        y = norm(x, state[f"{place}.norm1.weight"]) * (1 + c1) + s1
        if apple:
            q, k, v = (y @ state[f"{place}.{w}.weight"].T for w in ("qw", "kw", "vw"))
        else:
            q, k, v = (y @ state[f"{place}.attn_qkv.weight"].T).split(D, -1)
        out = []
        for head in range(HEADS):
            part = slice(head * size, (head + 1) * size)

            def turned(z: Tensor, part: slice = part) -> Tensor:
                a, b = z[:, part].chunk(2, -1)
                return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)

            out.append((turned(q) @ turned(k).T / size**0.5).softmax(-1) @ v[:, part])
        x = x + g1 * (torch.cat(out, -1) @ state[f"{place}.attn_out.weight"].T)
        y = norm(x, state[f"{place}.norm2.weight"]) * (1 + c2) + s2
        y = torch.nn.functional.gelu(
            y @ state[f"{place}.mlp.0.weight"].T + state[f"{place}.mlp.0.bias"], approximate="tanh"
        )
        x = x + g2 * (y @ state[f"{place}.mlp.2.weight"].T + state[f"{place}.mlp.2.bias"])
    shift, scale = modulation("output_layer", 2)
    y = norm(x, state["output_layer.norm_final.weight"]) * (1 + scale) + shift
    return y @ state["output_layer.linear.weight"].T + state["output_layer.linear.bias"]


@pytest.mark.parametrize("kind", THERE)
def test_an_imported_network_answers_as_the_public_one(kind: str, tmp_path: Path) -> None:
    model = load_velocity(imported(kind, tmp_path))
    state = public_state(kind, rows_of(kind))
    tokens = torch.randint(rows_of(kind), (9,), generator=torch.Generator().manual_seed(2))
    t, h = torch.tensor([0.4]), torch.tensor([0.25])
    told, _ = model.spec.told(t, h)
    value = {"mdlm": 0.0, "sdtt": 0.0, "dfm": 0.4, "fs-dfm": 0.4}.get(kind, -torch.tensor(0.4).log().item())
    assert told.item() == pytest.approx(value, abs=2e-3)
    got = model.net(tokens[None], *model.spec.told(t, h))[0]
    want = public_forward(kind, state, tokens, told.item(), 0.25)[:, : model.spec.vocab]
    torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", THERE)
def test_import_and_export_are_inverse(kind: str, tmp_path: Path) -> None:
    run = imported(kind, tmp_path)
    out = export(ExportSettings(model=run, to=tmp_path / "out"))
    want, got = public_state(kind, rows_of(kind)), load_file(out / "model.safetensors")
    assert want.keys() == got.keys()
    for name, tensor in want.items():
        assert torch.equal(tensor, got[name]), name
    again = import_(ImportSettings(source=str(out), out=tmp_path / "again"))
    first, second = load_velocity(run), load_velocity(again)
    assert first.spec == second.spec
    assert all(
        torch.equal(a, b)
        for a, b in zip(first.net.state_dict().values(), second.net.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize("kind", THERE)
def test_an_imported_model_writes(kind: str, tmp_path: Path) -> None:
    model = tsdfm.load(imported(kind, tmp_path), "cpu")
    samples = model.sample(n=2, steps=3, seed=1)
    assert samples.tokens.shape == (2, model.velocity.spec.length)
    if kind not in WORDS:
        direct = tsdfm.load(str(tmp_path / "public"), "cpu")
        assert torch.equal(direct.sample(n=2, steps=3, seed=1).tokens, samples.tokens)


CHANGED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "told the time": ("mdlm", {"time_conditioning": True}, {"time": True, "clock": "sigma", "logits": "subs"}),
    "told it after distillation": ("sdtt", {"time_conditioning": True}, {"time": True, "clock": "sigma"}),
    "not scaled": ("sedd", {"model": {**NESTED, "scale_by_sigma": False}}, {"logits": "score", "clock": "sigma"}),
}


@pytest.mark.parametrize("case", CHANGED)
def test_a_config_says_what_a_network_is_told_and_answers(case: str, tmp_path: Path) -> None:
    kind, words, spec = CHANGED[case]
    folder = write_public(kind, tmp_path / "public")
    (folder / "config.json").write_text(json.dumps({**CONFIGS[kind], **words}))
    run = import_(ImportSettings(source=str(folder), out=tmp_path / "run"))
    model = load_velocity(run)
    assert {name: getattr(model.spec, name) for name in spec} == spec
    x, t = torch.full((1, 5), TOKENS), torch.tensor([0.3])
    sigma = -torch.log(torch.tensor(0.001 + 0.999 * 0.3))
    want = public_forward(kind, public_state(kind, rows_of(kind)), x[0], sigma.item(), 0.0)[:, :TOKENS]
    reads: Any = "score" if kind == "sedd" else "posterior"
    torch.testing.assert_close(model.reading(reads)(x, t, t)[0].double(), want, atol=1e-4, rtol=1e-4)
    out = export(ExportSettings(model=run, to=tmp_path / "out"))
    assert load_file(out / "model.safetensors").keys() == public_state(kind, rows_of(kind)).keys()


def test_an_exported_score_has_the_words_that_its_public_class_reads(tmp_path: Path) -> None:
    """SEDD's class builds itself from config.json alone, and asks it for each of these."""
    spec = VelocitySpec(
        shape=NetSettings(width=32, depth=1, heads=2, cond=16).shape(), vocab=TOKENS, source="mask", schedule="poly:1",
        length=12, anchor=0, tokenizer=BPE.fingerprint, **method("sedd").words(),
    )  # fmt: skip
    write_folder(tmp_path / "out", spec, BPE, spec.network().state_dict(), {}, {})
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["tokens"], config["graph"]["type"], config["noise"]["type"]) == (TOKENS, "absorb", "loglinear")
    want = {"hidden_size", "cond_dim", "n_heads", "n_blocks", "dropout", "scale_by_sigma", "length"}
    assert config["model"].keys() == want


def test_the_other_parts_of_a_torch_file_are_named(tmp_path: Path) -> None:
    left = json.loads((imported("fs-dfm", tmp_path) / "manifest.json").read_text())["origin"]["left_out"]
    assert left == dict.fromkeys(("teacher_model", "step"), "another part of the torch file")


def test_a_model_of_ours_is_used_as_it_is(tmp_path: Path) -> None:
    """By its name or by its folder, there is nothing to import, and nothing that only a public model has."""
    run = imported("mdlm", tmp_path)
    for source in ("tsdfm-stories", "tsdfm-stories/teacher", str(run), str(run / "checkpoints" / "step-00000000")):
        for tokens in (None, tmp_path):
            with pytest.raises(UserError, match=f"{source} is a model of tsdfm already: every command takes it"):
                import_(ImportSettings(source=source, out=tmp_path / "again", tokens=tokens))
        for read in (tsdfm.load, tsdfm.from_pretrained):
            for word in ("revision", "kind"):
                with pytest.raises(UserError, match=f"no public checkpoint, .* a {word}: leave it out"):
                    read(source, "cpu", **{word: "foo"})


FRONT = {
    "---\nlanguage: en\nlicense: mit\n---\n# Model\nlicense: gpl-3.0\n": "mit",
    "---\r\nlicense: 'cc-by-4.0'\r\n---": "cc-by-4.0",
    "---\nlicense: mit\nlicense: gpl-3.0\n---\n": "apache-2.0",
    "---\nlicense: [mit]\n---\n": "apache-2.0",
    "---\nlicense:\n- mit\n---\n": "apache-2.0",
    "---\nlicense: x: [y\n---\n": "apache-2.0",
    "---\n---\nlicense: mit\n---\n": "apache-2.0",
    "license: mit\n": "apache-2.0",
}


@pytest.mark.parametrize("text", FRONT)
def test_a_licence_is_read_off_the_card_or_else_the_config(text: str, tmp_path: Path) -> None:
    folder = write_public("mdlm", tmp_path / "public")
    (folder / "config.json").write_text(json.dumps({**CONFIGS["mdlm"], "license": "apache-2.0"}))
    (folder / "README.md").write_text(text, newline="")
    assert read_public(folder).origin["licence"] == FRONT[text]


def test_a_licence_stays_from_export_to_export(tmp_path: Path) -> None:
    run = imported("mdlm", tmp_path)
    for place in ("one", "two"):
        said = "mit" if place == "one" else ""
        out = export(ExportSettings(model=run, to=tmp_path / place, licence=said))
        assert (out / "README.md").read_text().startswith("---\nlicense: mit\nlibrary_name: tsdfm\n")
        run = import_(ImportSettings(source=str(out), out=tmp_path / f"{place}-run"))


def test_the_tokenizer_comes_along(tmp_path: Path) -> None:
    model = tsdfm.load(imported("mdlm", tmp_path), "cpu")
    assert model.tokenizer.fingerprint == BPE.fingerprint
    assert model.velocity.spec.vocab == TOKENS
