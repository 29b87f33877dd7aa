"""What is wrong with a file is said in one line, and nothing is written."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.public.public_files import HEADS, public_state, rows_of, write_public

from tsdfm.errors import UserError
from tsdfm.public.export import write_tokenizer
from tsdfm.public.run import run
from tsdfm.public.settings import ImportSettings
from tsdfm.store.manifest import read_manifest


def changed(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def work(folder: Path) -> None:
        state = load_file(folder / "model.safetensors")
        change(state)
        save_file(state, folder / "model.safetensors")

    return work


def config(**words: object) -> Callable[[Path], None]:
    def work(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **words}))

    return work


def pointer(folder: Path) -> None:
    """What a clone without git-lfs has in the file's place."""
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


BLOCK, ROTARY = "backbone.blocks.1.", "backbone.rotary_emb.inv_freq"
CASES: dict[str, tuple[Callable[[Path], None], str]] = {
    "truncated": (cut, "not a whole safetensors file"),
    "missing": (changed(lambda s: s.pop(f"{BLOCK}attn_out.weight")), "attn_out.weight is missing"),
    "further": (changed(lambda s: s.update({"backbone.more": torch.ones(2)})), "more has no place in it"),
    "nan": (changed(lambda s: s[f"{BLOCK}attn_out.weight"].fill_(float("nan"))), "not finite"),
    "integers": (changed(lambda s: s.update({f"{BLOCK}norm1.weight": torch.ones(32, dtype=torch.int64)})), "type"),
    "shape": (changed(lambda s: s.update({f"{BLOCK}attn_out.weight": torch.ones(32, 16)})), "has the shape"),
    "zero": (changed(lambda s: s["backbone.output_layer.linear.weight"].zero_()), "never trained"),
    "rows": (changed(lambda s: s.update({"backbone.vocab_embed.embedding": torch.ones(310, 32)})), "not its tokenizer"),
    "config": (config(hidden_dim=64), "they disagree"),
    "vocabulary": (config(vocab_size=50258), "vocab_size 50258 and the tensors say"),
    "noise": (config(noise={"type": "geometric"}), "learned from geometric noise"),
    "graph": (config(graph={"type": "uniform"}), "graph uniform, and the embedding has a row for"),
    "rotation": (changed(lambda s: s[ROTARY].copy_(500_000.0 ** -torch.linspace(0, 0.875, 8))), "other rates than"),
    "heads": (changed(lambda s: s.update({ROTARY: torch.ones(5)})), "does not split|has the shape"),
    "number": (config(n_heads="2"), "n_heads '2', which is no whole number"),
    "length": (config(model_length="12"), "model_length '12', which is no whole number"),
    "neither": (config(time_conditioning="no"), "neither true nor false"),
    "float8": (changed(lambda s: s.update({f"{BLOCK}norm1.weight": torch.ones(32).to(torch.float8_e4m3fn)})), "type"),
    "scalar": (changed(lambda s: s.update({f"{BLOCK}norm1.weight": torch.tensor(1.0)})), "has the shape"),
    "scalar rows": (
        changed(lambda s: s.update({"backbone.vocab_embed.embedding": torch.tensor(1.0)})),
        "width must be",
    ),
    "scalar condition": (
        changed(lambda s: s.update({"backbone.blocks.0.adaLN_modulation.weight": torch.tensor(1.0)})),
        "cond must be",
    ),
    "scalar rotation": (changed(lambda s: s.update({ROTARY: torch.tensor(1.0)})), "they disagree"),
    "block name": (changed(lambda s: s.update({"backbone.blocks.x.norm1.weight": torch.ones(32)})), "has no place"),
    "block number": (changed(lambda s: s.update({"backbone.blocks.-1.norm1.weight": torch.ones(32)})), "has no place"),
    "pointer": (pointer, "git lfs pull"),
    "twice": (changed(lambda s: s.update({"blocks.1.norm1.weight": torch.ones(32)})), "the same tensor of two"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "name it with --kind"),
    "broken config": (lambda folder: (folder / "config.json").write_text("{"), "damaged"),
    "nothing": (lambda folder: (folder / "model.safetensors").unlink(), "holds no checkpoint"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_bad_file_is_refused(case: str, tmp_path: Path) -> None:
    folder = write_public("mdlm", tmp_path / "public")
    change, said = CASES[case]
    change(folder)
    with pytest.raises(UserError, match=said):
        run(ImportSettings(source=str(folder), out=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "words", [{"part": "x"}, {"length": 8}, {"mask": 5}, {"mask": 0}, {"block": 4}, {"revision": "main"}]
)
def test_a_flag_that_does_nothing_is_said(words: dict[str, Any], tmp_path: Path) -> None:
    folder = write_public("mdlm", tmp_path / "public")
    with pytest.raises(UserError, match=f"--{next(iter(words))} .*leave it out"):
        run(ImportSettings(source=str(folder), out=tmp_path / "run", **words))


@pytest.mark.parametrize(
    ("kind", "words", "said"),
    [
        ("mdlm", {"kind": "duo"}, "--kind says duo, and the files are of mdlm"),
        ("dfm", {"kind": "fs-dfm"}, "--kind says fs-dfm, and the files are of dfm"),
        ("mdlm", {"heads": 2 * HEADS}, f"--heads says {2 * HEADS} and the file {HEADS}"),
    ],
)
def test_a_flag_that_contradicts_the_file_is_refused(
    kind: str, words: dict[str, Any], said: str, tmp_path: Path
) -> None:
    folder = write_public(kind, tmp_path / "public")
    with pytest.raises(UserError, match=f"{said}: leave it out"):
        run(ImportSettings(source=str(folder), out=tmp_path / "run", **words))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["mdlm", "duo"])
def test_a_kind_decides_where_a_file_fits_several(kind: str, tmp_path: Path) -> None:
    folder = write_public("mdlm", tmp_path / "public")
    config(causal=False)(folder)
    made = run(ImportSettings(source=str(folder), out=tmp_path / "both", kind=kind))
    assert read_manifest(made)["origin"]["layout"] == kind
    (folder / "config.json").unlink()
    made = run(ImportSettings(source=str(folder), out=tmp_path / "neither", kind=kind))
    assert read_manifest(made)["origin"]["layout"] == kind


@pytest.mark.parametrize("tensor", [torch.eye(32).to_sparse(), torch.ones(32, 32, device="meta")])
def test_what_torch_files_may_hold_beside_numbers_is_refused(tensor: torch.Tensor, tmp_path: Path) -> None:
    folder = write_public("dfm", tmp_path / "public")
    torch.save({**public_state("dfm", rows_of("dfm")), "blocks.0.qw.weight": tensor}, folder / "checkpoint.pth")
    with pytest.raises(UserError, match=r"blocks\.0\.qw\.weight .* weights are dense floats"):
        run(ImportSettings(source=str(folder), out=tmp_path / "run"))


class Harm:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return (print, ("executed",))


def test_a_pickle_that_would_execute_something_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_public("dfm", tmp_path / "public")
    torch.save({"model": Harm()}, folder / "checkpoint.pth")
    with pytest.raises(UserError, match="would execute"):
        run(ImportSettings(source=str(folder), out=tmp_path / "run", heads=HEADS))
    (folder / "checkpoint.pth").write_bytes(pickle.dumps(Harm()))
    with pytest.raises(UserError, match=r"would execute|no whole torch file"):
        run(ImportSettings(source=str(folder), out=tmp_path / "run", heads=HEADS))
    assert "executed" not in capsys.readouterr().out


def test_what_a_file_leaves_open_is_asked(tmp_path: Path) -> None:
    folder = write_public("fs-dfm", tmp_path / "public")
    with pytest.raises(UserError, match="choose one with --part"):
        run(ImportSettings(source=str(folder), out=tmp_path / "run"))
    with pytest.raises(UserError, match=f"--heads says {2 * HEADS} and the file {HEADS}: leave it out"):
        run(ImportSettings(source=str(folder), out=tmp_path / "run", part="student_model", heads=2 * HEADS))
    with pytest.raises(UserError, match="no part 'student'"):
        run(ImportSettings(source=str(folder), out=tmp_path / "run", part="student"))
    state = public_state("dfm", rows_of("dfm"))
    del state["rotary_emb.inv_freq"]
    torch.save(state, folder / "checkpoint.pth")
    with pytest.raises(UserError, match="give --heads"):
        run(ImportSettings(source=str(folder), out=tmp_path / "run"))
    (folder / "model.ckpt").write_bytes(b"")
    with pytest.raises(UserError, match="Lightning"):
        run(ImportSettings(source=str(folder / "model.ckpt"), out=tmp_path / "run"))


def test_another_tokenizer_of_gpt2s_size_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every number of rows fits, and every text would be nonsense."""
    from benchmarks.checkpoint import pairs_of_bytes

    tokenizer = pairs_of_bytes()
    write_tokenizer(tokenizer, tmp_path)
    torch.save(public_state("dfm", tokenizer.vocab_size), tmp_path / "checkpoint.pth")
    with pytest.raises(UserError, match="as many tokens as GPT-2's, and is another: give --tokenizer"):
        run(ImportSettings(source=str(tmp_path), out=tmp_path / "run"))
    assert run(ImportSettings(source=str(tmp_path), out=tmp_path / "run", tokenizer=tmp_path)) == tmp_path / "run"
    for file in ("vocab.json", "merges.txt"):
        (tmp_path / file).unlink()
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    with pytest.raises(UserError, match=r"give its folder as --tokenizer$"):
        run(ImportSettings(source=str(tmp_path / "checkpoint.pth"), out=tmp_path / "other"))


def test_shards_are_read_by_their_index(tmp_path: Path) -> None:
    folder = write_public("mdlm", tmp_path / "public")
    (folder / "model.safetensors").unlink()
    state = public_state("mdlm", rows_of("mdlm"))
    names = sorted(state)
    shards = {"one.safetensors": names[:9], "two.safetensors": names[9:]}
    for file, part in shards.items():
        save_file({name: state[name] for name in part}, folder / file)
    index = {name: file for file, part in shards.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert run(ImportSettings(source=str(folder), out=tmp_path / "run")) == tmp_path / "run"
    (folder / "two.safetensors").unlink()
    with pytest.raises(UserError, match=r"two\.safetensors is missing"):
        run(ImportSettings(source=str(folder), out=tmp_path / "other"))
