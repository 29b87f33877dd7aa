"""Models go to the hub and come back, by its own client, against a hub on this machine."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.local_hub import nobody, online, serving
from tests.public.public_files import public_state, rows_of, write_public
from tests.public.test_causal import write_causal

import tsdfm
from tsdfm.cli import main
from tsdfm.errors import UserError
from tsdfm.nn.settings import NetSettings
from tsdfm.nn.velocity import VelocitySpec, load_velocity
from tsdfm.public.card import UNMEASURED, UNSAID
from tsdfm.public.export import known_of, write_folder
from tsdfm.public.run import run as import_
from tsdfm.public.settings import ImportSettings
from tsdfm.samples.defaults import RUNS, defaults_of
from tsdfm.store import bundle
from tsdfm.store.bundle import MODELS, find_member
from tsdfm.store.manifest import descent_of, read_manifest
from tsdfm.tokens.tokenizer import ByteTokenizer


def own_model(folder: Path) -> Path:
    """A student of a masked model: what no public layout has, with bytes for tokens."""
    tokenizer = ByteTokenizer()
    spec = VelocitySpec(
        shape=NetSettings(width=32, depth=1, heads=2, cond=16, positions=12).shape(), vocab=tokenizer.vocab_size,
        source="mask", schedule="cosine", length=12, anchor=1, tokenizer=tokenizer.fingerprint, step_size=True,
        time=False, logits="subs", method="ts-dfm", jump="cumulative",
    )  # fmt: skip
    torch.manual_seed(0)
    net = spec.network()
    for weight in net.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    write_folder(folder, spec, tokenizer, net.state_dict(), {}, {})
    return folder


def test_a_model_goes_to_the_hub_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = import_(ImportSettings(source=str(write_public("mdlm", tmp_path / "public")), out=tmp_path / "run"))
    home = tmp_path / "hub"
    home.mkdir()
    with serving({}, into=home) as address:
        online(monkeypatch, address, tmp_path / "cache")
        assert main(["export", str(run), "--to", str(tmp_path / "out"), "--push", "me/by-command"]) == 0
        tsdfm.load(run, "cpu").push_to_hub("me/by-python")
        state = public_state("mdlm", rows_of("mdlm"))
        for name in ("me--by-command", "me--by-python"):
            got = load_file(home / name / "model.safetensors")
            assert got.keys() == state.keys()
            assert all(torch.equal(got[key], tensor) for key, tensor in state.items())
            card = (home / name / "README.md").read_text()
            assert card.startswith("---\nlicense:")
            assert f'tsdfm.from_pretrained("{name.replace("--", "/")}")' in card
        model = tsdfm.from_pretrained("me/by-python", "cpu", revision="main")
        assert tsdfm.load("me/by-python", "cpu", revision="main").velocity.sha256 == model.velocity.sha256
    want = tsdfm.load(run, "cpu").sample(n=2, steps=3, seed=1).tokens
    assert torch.equal(model.sample(n=2, steps=3, seed=1).tokens, want)


@pytest.mark.parametrize("asked", ["", "main"])
def test_the_commit_that_was_fetched_is_recorded(asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_public("mdlm", tmp_path / "public")
    write_causal("Qwen2", tmp_path / "causal")
    made = ["--name", "world:small", "--limit", "120", "--valid", "0.1", "--out", str(tmp_path / "corpus")]
    assert main(["corpus", *made]) == 0
    rows = ["--vocab-size", "300", "--length", "16", "--workers", "1", "--out", str(tmp_path / "tokens")]
    assert main(["tokens", "--corpus", str(tmp_path / "corpus"), *rows]) == 0
    with serving({"me/mdlm": tmp_path / "public", "me/causal": tmp_path / "causal"}) as address:
        online(monkeypatch, address, tmp_path / "cache")
        for name, tokens in {"mdlm": None, "causal": tmp_path / "tokens"}.items():
            asks = ImportSettings(source=f"me/{name}", out=tmp_path / f"{name}-run", revision=asked, tokens=tokens)
            origin = read_manifest(import_(asks))["origin"]
            assert (origin["source"], origin["revision"]) == (f"me/{name}", "0" * 40)


def test_what_has_no_public_relatives_keeps_our_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = own_model(tmp_path / "student")
    model = tsdfm.from_pretrained(folder, "cpu")
    assert (model.method, model.velocity.spec.anchor, model.velocity.spec.schedule) == ("ts-dfm", 1, "cosine")
    run = import_(ImportSettings(source=str(folder), out=tmp_path / "run"))
    assert load_velocity(run).spec == model.velocity.spec
    home = tmp_path / "hub"
    home.mkdir()
    with serving({}, into=home) as address:
        online(monkeypatch, address, tmp_path / "cache")
        model.push_to_hub("me/few-step")
        again = tsdfm.from_pretrained("me/few-step", "cpu")
    assert again.velocity.spec == model.velocity.spec
    assert torch.equal(again.sample(n=2, steps=2).tokens, model.sample(n=2, steps=2).tokens)


def test_a_folder_that_does_not_fit_its_config_is_refused(tmp_path: Path) -> None:
    folder = own_model(tmp_path / "student")
    state = load_file(folder / "model.safetensors")
    del state["norm.weight"]
    save_file(state, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"norm\.weight is not there and should be \(32,\)"):
        tsdfm.load(folder, "cpu")
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace('"depth": 1', '"depth": 0'))
    with pytest.raises(UserError, match="depth"):
        tsdfm.load(folder, "cpu")


def test_an_exported_bundle_has_its_own_card_licence_and_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By command and by Python; and what is imported again is sampled as the bundle is."""
    (home := tmp_path / "hub").mkdir()
    out, run = tmp_path / "out", tmp_path / "run"
    assert main(["export", "tsdfm-stories", "--to", str(out)]) == 0
    with serving({}, into=home) as address:
        online(monkeypatch, address, tmp_path / "cache")
        tsdfm.load("tsdfm-stories", "cpu").push_to_hub("me/stories")
        assert defaults_of(Path("me/stories")) == defaults_of(Path("tsdfm-stories"))
    for folder in (out, home / "me--stories"):
        card = (folder / "README.md").read_text()
        assert card.startswith("---\nlicense: apache-2.0\n")
        for said in (
            "student of tsdfm-stories",
            "copyright 2023 Andrej Karpathy",
            "**Figures.**",
            "steps=8",
            "Trained",
        ):
            assert said in card
        for wrong in (UNSAID, UNMEASURED, "## Data", "Written by `tsdfm ship`"):
            assert wrong not in card
    assert main(["import", str(out), "--out", str(run)]) == 0
    assert defaults_of(run) == defaults_of(out) == defaults_of(Path("tsdfm-stories")) != RUNS
    assert main(["export", str(run), "--to", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again" / "README.md").read_text().startswith("---\nlicense: apache-2.0\n")
    assert defaults_of(tmp_path / "again") == defaults_of(run)
    config = (out / "config.json").read_text()
    (out / "config.json").write_text(config.replace('"steps": 8', '"steps": "many"'))
    assert main(["import", str(out), "--out", str(tmp_path / "bad")]) == 2
    assert "tsdfm_defaults.steps takes a whole number" in capsys.readouterr().err
    assert not (tmp_path / "bad").exists()


def test_a_bundles_licence_goes_with_what_is_made_of_it(tmp_path: Path) -> None:
    """Of a student trained from it, of the bundle shipped again, and of an imported model that is shipped."""
    for name, student in (("again", "tsdfm-stories"), ("imported", str(tmp_path / "run"))):
        if name == "imported":
            assert main(["export", "tsdfm-stories", "--to", str(tmp_path / "public")]) == 0
            assert main(["import", str(tmp_path / "public"), "--out", student]) == 0
        assert main(["ship", "--student", student, "--out", str(tmp_path / name), "--name", name]) == 0
        assert main(["export", str(tmp_path / name), "--to", str(tmp_path / f"{name}-out")]) == 0
        card = (tmp_path / f"{name}-out" / "README.md").read_text()
        assert card.startswith("---\nlicense: apache-2.0\n")
    known = descent_of(MODELS / "tsdfm-stories" / "student.safetensors")  # what a student trained from it descends from
    assert known == {"source": "storyteller", "layout": "causal", "licence": "apache-2.0"}


def test_a_bundle_that_nobody_wrote_about_says_so_once(tmp_path: Path) -> None:
    bare = shutil.copytree(MODELS / "tsdfm-stories", tmp_path / "bare")
    (bare / "card.md").write_text(f"# bare\n\n{bundle.UNSAID}\n\n{bundle.FACTS} from the manifests of the runs.\n")
    assert main(["export", str(bare), "--to", str(tmp_path / "out")]) == 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert UNSAID in card
    assert UNMEASURED in card
    assert bundle.UNSAID not in card


def test_a_bundles_teacher_is_exported_as_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine.md").write_text("My words.")
    words = ["--licence", "mit", "--card", str(tmp_path / "mine.md")]
    assert main(["export", "tsdfm-stories/teacher", "--to", str(tmp_path / "out"), *words]) == 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.startswith("---\nlicense: mit\n")
    assert "\n\nMy words.\n\n## Use" in card
    assert "This is the teacher of tsdfm-stories" in known_of(find_member("tsdfm-stories/teacher", "").file)[1]["said"]
    assert defaults_of(tmp_path / "out") == RUNS


@pytest.mark.parametrize("licence", ["x: [y", "mit\ntags: evil", "-", "a b"])
def test_a_licence_that_is_no_word_is_refused(licence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    for words in (["export", "tsdfm-stories", "--to"], ["ship", "tsdfm-stories", "--name", "x", "--out"]):
        assert main([*words, str(out), f"--licence={licence}"]) == 2
        said = capsys.readouterr().err
        assert "--licence is one word, as in apache-2.0" in said
        assert said.count("\n") == 1
        assert not out.exists()


@pytest.mark.parametrize("words", [{"kind": "foo"}, {"kind": "mdlm"}, {"heads": 7}])
def test_a_flag_that_our_own_layout_does_not_need_is_said(words: dict[str, Any], tmp_path: Path) -> None:
    folder = own_model(tmp_path / "student")
    with pytest.raises(UserError, match=f"--{next(iter(words))} .*leave it out"):
        import_(ImportSettings(source=str(folder), out=tmp_path / "run", **words))


def test_what_cannot_be_uploaded_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tsdfm.load(own_model(tmp_path / "student"), "cpu")
    with pytest.raises(UserError, match="no hub name"):
        model.push_to_hub("mine")
    online(monkeypatch, nobody(), tmp_path / "cache")
    with pytest.raises(UserError, match="nothing was uploaded to me/mine: the hub cannot be reached"):
        model.push_to_hub("me/mine")
