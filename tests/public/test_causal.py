"""A causal model as the start of a flow model: the same network to the digit, then trained, distilled and shipped."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.judges.test_storyteller import write_storyteller
from tests.public.test_decoders import BPE_ENGINE, END, ROWS, THEIRS, config_of, module
from torch import Tensor

import tsdfm
from tsdfm.cli import main
from tsdfm.compass.model import load_compass
from tsdfm.compass.network import spec_from, start_from_teacher
from tsdfm.compass.run import sizes
from tsdfm.compass.settings import CompassNet, CompassSettings
from tsdfm.corpus.storyteller import START, storyteller_in
from tsdfm.errors import UserError
from tsdfm.nn.decoder import Decoder
from tsdfm.nn.network import condition_of
from tsdfm.nn.velocity import Velocity, VelocitySpec, load_velocity
from tsdfm.public.card import card
from tsdfm.public.causal import Causal, bytes_of, read_causal, sizes_in, start_for
from tsdfm.public.export import write_folder
from tsdfm.public.layouts import EMBEDDING, HEAD
from tsdfm.public.run import run as import_
from tsdfm.public.settings import ImportSettings
from tsdfm.tokens.rows import TokenRows
from tsdfm.tokens.tokenizer import load_tokenizer

CAUSAL = {"Llama": "llada", "Qwen2": "dream", "Qwen3": "sdar"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storyteller, and tokens of stories."""
    home = tmp_path_factory.mktemp("causal")
    write_storyteller(home / "teller")
    corpus = ["--name", "world:small", "--limit", "120", "--valid", "0.1", "--out", str(home / "corpus")]
    assert main(["corpus", *corpus]) == 0
    words = ["--vocab-size", "400", "--length", "48", "--layout", "document", "--workers", "1"]
    assert main(["tokens", "--corpus", str(home / "corpus"), *words, "--out", str(home / "tokens")]) == 0
    return home


def write_causal(make: str, folder: Path) -> Any:
    """A folder as the hub would give it; a Qwen3 has its head tied to its embedding."""
    folder.mkdir()
    theirs, kind = module(CAUSAL[make]), CAUSAL[make]
    state = {name: tensor.clone() for name, tensor in theirs.state_dict().items()}
    if THEIRS[kind][1].get("tie_word_embeddings"):
        del state["lm_head.weight"]
    save_file(state, folder / "model.safetensors")
    config = theirs.config.to_dict() | {"architectures": [f"{make}ForCausalLM"], "eos_token_id": END}
    config |= {"rope_theta": THEIRS[kind][1]["theta"], "bos_token_id": None}
    kept = {*config_of("dream"), "architectures", "tie_word_embeddings"}
    config = {name: value for name, value in config.items() if name in kept}
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    BPE_ENGINE.save(str(folder / "tokenizer.json"))
    return theirs


def masked_again(causal: Causal, tokens: Tensor) -> Tensor:
    """Logits of the decoder with blocks of one, in which a position sees itself and those before it."""
    rows = len(causal.weights[EMBEDDING])
    net = Decoder(replace(causal.shape, block=1, cond=0), vocab=rows, tokens=rows).eval()
    net.load_state_dict(causal.weights)
    with torch.no_grad():
        out: Tensor = net(tokens, torch.zeros(len(tokens)))
    return out


def test_a_storyteller_spells_bytes_that_are_no_pieces(home: Path) -> None:
    causal = read_causal(home / "teller")
    assert causal.spell(b"\x07") == [3 + 7]
    assert causal.spell(b" ab\x00") == [3 + 256 + 6, 3]


def test_a_storyteller_is_the_same_network(home: Path) -> None:
    teller = storyteller_in(home / "teller")
    tokens = torch.tensor([[START, 260, 265, 261, 262, 264]])
    want = teller.hidden(tokens) @ teller.weights["embedding"].T
    torch.testing.assert_close(masked_again(read_causal(home / "teller"), tokens), want, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("make", CAUSAL)
def test_a_public_causal_model_is_the_same_network(make: str, tmp_path: Path) -> None:
    theirs = write_causal(make, tmp_path / "model")
    tokens = torch.randint(ROWS, (3, 16), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        want = theirs(tokens).logits
    torch.testing.assert_close(masked_again(read_causal(tmp_path / "model"), tokens), want, atol=1e-5, rtol=1e-5)


def test_a_tied_head_is_the_embedding_whatever_stands_beside_it(tmp_path: Path) -> None:
    write_causal("Qwen3", tmp_path / "model")
    tensors(lambda s: s.update({"lm_head.weight": torch.ones(ROWS, 32)}))(tmp_path / "model")
    found = read_causal(tmp_path / "model").weights
    assert torch.equal(found[HEAD], found[EMBEDDING])


def test_rows_of_tokens() -> None:
    """Tokens that both have take its rows; others are spelled, the longest first; one without bytes starts a text."""
    table = torch.eye(5)
    ids = {b"a": 0, b"ab": 1, b" ": 2, b"c": 3}
    causal = Causal(None, {EMBEDDING: table, HEAD: 2 * table}, ids, 4, {})  # type: ignore[arg-type]
    assert [causal.spell(piece) for piece in (b"ab", b"abc", b" ca", b"", b"xa", b"x")] == [
        [1], [1, 3], [2, 3, 0], [4], [0], [4],
    ]  # fmt: skip
    embedding, head = causal.rows_for([b"abc", b""])
    assert torch.equal(embedding, torch.tensor([[0, 0.5, 0, 0.5, 0], [0, 0, 0, 0, 1]]))
    assert torch.equal(head, torch.tensor([[0, 2.0, 0, 0, 0], [0, 0, 0, 0, 2]]))


@pytest.mark.parametrize("noise", ["uniform", "mask"])
def test_what_a_start_is(home: Path, noise: str) -> None:
    rows = TokenRows(home / "tokens", "train")
    spec, weights, _ = start_for(home / "teller", home / "tokens", noise)
    assert (spec.vocab, spec.length, spec.anchor, spec.shift, spec.time) == (rows.vocab_size, 48, 1, True, True)
    known = read_causal(home / "teller").rows_for(rows.tokenizer.pieces)[0]
    assert torch.equal(weights[EMBEDDING][: rows.vocab_size], known)
    if noise == "mask":
        torch.testing.assert_close(weights[EMBEDDING][-1], known.mean(0))
    assert len(weights[EMBEDDING]) == rows.vocab_size + (noise == "mask")
    net = spec.network()
    net.load_state_dict(weights)
    x = torch.from_numpy(rows.take([0, 1]).astype("int64"))
    with torch.no_grad():
        early, late = net(x, torch.tensor([0.1, 0.1])), net(x, torch.tensor([0.9, 0.9]))
    assert torch.equal(early, late)  # it is not told the time yet: the maps of the condition are zero


@pytest.mark.parametrize("make", ["storyteller", "Qwen2"])
def test_a_start_that_grows_begins_as_the_causal_model(make: str, home: Path, tmp_path: Path) -> None:
    source = home / "teller"
    if make == "Qwen2":
        write_causal(make, source := tmp_path / "model")
    rows = TokenRows(home / "tokens", "train")
    x, said = torch.from_numpy(rows.take([0, 1]).astype("int64")), []
    for grow in (1, 3):
        spec, weights, _ = start_for(source, home / "tokens", "uniform", grow)
        assert sizes_in(source, grow) == spec.decoder
        net = spec.network()
        net.load_state_dict(weights)
        said.append(net(x, torch.tensor([0.1, 0.9])))
    torch.testing.assert_close(said[1], said[0], atol=1e-5, rtol=1e-5)
    assert len(net.blocks) == spec.shape.depth == 3 * read_causal(source).shape.depth
    assert len({weight.data_ptr() for weight in net.parameters()}) == len(list(net.parameters()))
    said[1].square().sum().backward()
    new = [block.get_parameter("down.weight") for block in net.blocks]
    assert all(weight.grad is not None and bool(weight.grad.any()) for weight in new)  # they learn from the first step


SMALL = ["--loop.device", "cpu", "--loop.batch", "8", "--eval-rows", "8", "--eval-times", "2", "--optim.warmup", "1"]


@pytest.mark.parametrize("noise", ["uniform", "mask"])
def test_from_a_storyteller_to_a_shipped_student(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noise: str
) -> None:
    monkeypatch.chdir(tmp_path)
    tokens = ["--tokens", str(home / "tokens")]
    assert main(["import", str(home / "teller"), *tokens, "--noise", noise, "--out", "start"]) == 0
    words = [*tokens, "--init-from", "start", "--source", noise, *SMALL, "--optim.lr", "0.01", "--optim.ema", "0.5"]
    assert main(["teacher", *words, "--loop.steps", "12", "--loop.log-every", "1", "--out", "teacher"]) == 0
    losses = [json.loads(line)["loss"] for line in Path("teacher/metrics.jsonl").read_text().splitlines()[:12]]
    assert sum(losses[-4:]) < 0.8 * sum(losses[:4])  # it learns
    teacher = load_velocity("teacher")
    assert teacher.spec.decoder is not None
    assert teacher.spec.decoder.cond
    student = [*tokens, "--init-from", "teacher", *SMALL, "--loop.steps", "3"]
    assert main(["student", *student, "--fresh", "fit", "--out", "few"]) == 0
    assert main(["train", "idlm", *student, "--step-size", "--auxiliary.alone", "1", "--out", "matched"]) == 0
    words = [*tokens, "--teacher", "teacher", "--init", "teacher", *SMALL[:4], "--loop.steps", "2", "--negatives", "2"]
    assert main(["compass", *words, "--eval-rows", "4", "--out", "compass"]) == 0
    navigated = [*tokens, "--init-from", "few", "--compass", "compass", *SMALL, "--loop.steps", "2"]
    assert main(["train", "ts-dfm", *navigated, "--out", "shaped"]) == 0
    for run in ("few", "matched", "shaped"):
        found = load_velocity(run).spec
        assert (found.step_size, found.shift) == (True, True)
        made = tsdfm.load(run, "cpu").sample(n=2, steps=2, seed=0)
        assert made.tokens.shape == (2, 48)
    members = ["--teacher", "teacher", "--compass", "compass"]
    assert main(["ship", "few", *members, "--name", "mine", "--out", "mine"]) == 0
    assert load_compass("mine").spec == load_compass("compass").spec
    for role, run in {"student": "few", "teacher": "teacher"}.items():
        packed, plain = load_velocity(f"mine/{role}"), load_velocity(run)
        assert packed.spec == plain.spec
        x = torch.full((1, 48), 5)
        told = plain.spec.told(torch.tensor([0.5]), torch.tensor([0.25]))
        torch.testing.assert_close(packed.net(x, *told), plain.net(x, *told), atol=0.3, rtol=0.05)


def test_a_compass_takes_over_a_decoders_blocks(home: Path) -> None:
    spec, weights, _ = start_for(home / "teller", home / "tokens", "uniform")
    teacher = Velocity(spec, spec.network(), spec.flow_source(), spec.flow_schedule())
    teacher.net.load_state_dict(weights)
    shape, decoder = sizes(CompassSettings(tokens=Path("a"), teacher=Path("b"), out=Path("c"), init="teacher"), spec)
    net = spec_from(spec, shape, "nce", decoder).network()
    start_from_teacher(net, teacher)
    assert (shape.depth, len(net.blocks)) == (1, 1)  # half of two
    for name, weight in net.blocks[0].state_dict().items():
        assert torch.equal(weight, weights[f"blocks.0.{name}"]), name
    assert torch.equal(net.embedding.weight, weights[EMBEDDING])
    wide = CompassSettings(tokens=Path("a"), teacher=Path("b"), out=Path("c"), init="teacher", net=CompassNet(width=64))
    with pytest.raises(UserError, match=r"leave out net\.\* but net\.depth"):
        sizes(wide, spec)


def test_a_student_of_a_decoder_begins_as_its_teacher(home: Path, tmp_path: Path) -> None:
    """Also of one that was told nothing: a public LLaDA, whose student is told h."""
    from tests.public.test_decoders import write_decoder

    from tsdfm.distil.run import spec_for
    from tsdfm.distil.start import start_from
    from tsdfm.methods.fs_dfm import METHOD, FSDFMSettings

    settings = FSDFMSettings(tokens=Path("a"), init_from=Path("b"), out=Path("c"))
    write_decoder("llada", tmp_path / "public")
    told, weights, _ = start_for(home / "teller", home / "tokens", "uniform")
    told = replace(told, method="dfm")
    untold = tsdfm.load(tmp_path / "public", "cpu").velocity
    for spec, state in ((told, weights), (untold.spec, untold.net.state_dict())):
        found = spec_for(settings, replace(spec, logits="plain"), METHOD)
        assert found.decoder is not None
        assert found.decoder.cond
        torch.manual_seed(0)
        student, teacher = found.network().eval(), spec.network().eval()
        teacher.load_state_dict(state)
        start_from(student, dict(state), spec, step_size=False, fit=True, where="here")
        x = torch.randint(200, (2, 8), generator=torch.Generator().manual_seed(1))
        t, h = torch.tensor([0.25, 0.75]), torch.tensor([0.125, 0.5])
        with torch.no_grad():
            torch.testing.assert_close(student(x, *found.told(t, h)), teacher(x, *spec.told(t, h)))


def test_a_pipeline_starts_on_tokens_that_are_there_already(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("r.toml").write_text(f"""
sources = ["uniform"]
[start]
source = "{home / "teller"}"
tokens = "{home / "tokens"}"
[models.teacher]
method = "dfm"
tokens = "{home / "tokens"}"
init_from = "start"
loop.steps = 1
loop.device = "cpu"
eval_rows = 4
eval_times = 1
""")
    assert main(["pipeline", "r.toml", "--set", "start.tokens=nowhere", "--out", "no"]) == 2
    assert "start: tokens says nowhere, and there is nothing" in capsys.readouterr().err
    assert main(["pipeline", "r.toml", "--out", "all"]) == 0
    assert load_velocity("all/teacher-uniform").spec.decoder is not None


def test_a_pipeline_starts_from_a_causal_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It goes on from wherever its folder and the causal model lie, but not from other weights or tokens."""
    monkeypatch.chdir(tmp_path)
    write_storyteller(Path("teller"))
    recipe = """
sources = ["uniform", "mask"]
[corpus]
name = "world:small"
limit = 120
valid = 0.1
[tokens]
length = 48
layout = "document"
[start]
source = "teller"
[models.teacher]
method = "dfm"
init_from = "start"
loop.steps = 2
loop.device = "cpu"
eval_rows = 4
eval_times = 1
"""
    Path("r.toml").write_text(recipe)
    assert main(["pipeline", "r.toml", "--out", "all"]) == 0
    for source in ("uniform", "mask"):
        spec = load_velocity(f"all/teacher-{source}").spec
        assert spec.source == source
        assert spec.decoder is not None
        manifest = json.loads(Path(f"all/teacher-{source}/manifest.json").read_text())
        assert Path(manifest["inputs"]["init_from"]["path"]).name == f"start-{source}"
    before = Path("all/start-mask/manifest.json").stat().st_mtime_ns
    assert main(["pipeline", "r.toml", "--out", "all"]) == 0
    assert main(["pipeline", "r.toml", "--out", str(tmp_path / "all")]) == 0
    Path("all").rename("moved")
    Path("teller").rename("elsewhere")
    again = ["pipeline", "r.toml", "--set", "start.source=elsewhere", "--out", "moved"]
    assert main(again) == 0
    assert Path("moved/start-mask/manifest.json").stat().st_mtime_ns == before
    first = Path("elsewhere").rename("first")
    write_storyteller(Path("elsewhere"), seed=1)
    capsys.readouterr()
    assert main(again) == 2
    assert "moved/start-uniform was made from another causal model: remove it" in capsys.readouterr().err
    again[3] = f"start.source={first}"
    tokens = json.loads(Path("moved/tokens/manifest.json").read_text())
    Path("moved/tokens/manifest.json").write_text(json.dumps({**tokens, "created": "another day"}))
    assert main(again) == 2
    assert "moved/start-uniform was made from other tokens: remove it" in capsys.readouterr().err


@pytest.mark.parametrize("make", ["storyteller", "Qwen3"])
def test_the_doctor_reads_the_sizes_of_a_start(
    make: str, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are those of the networks that are then trained."""
    source = home / "teller" if make == "storyteller" else tmp_path / "model"
    if make != "storyteller":
        write_causal(make, source)
    (tmp_path / "r.toml").write_text(f"""
sources = ["mask"]
[corpus]
name = "world:small"
[tokens]
tokenizer_files = "{home / "tokens"}"
length = 48
[start]
source = "{source}"
[models.teacher]
method = "dfm"
init_from = "start"
[models.compass]
method = "compass"
init = "teacher"
""")
    capsys.readouterr()
    assert main(["doctor", str(tmp_path / "r.toml"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["recipe"]
    spec, weights, _ = start_for(source, home / "tokens", "mask")
    assert sizes_in(source) == spec.decoder
    blocks = f"2 blocks of width {spec.shape.width}, {spec.shape.heads} heads"
    assert found["network"] == f"{blocks}, |V| = {spec.vocab}, length 48"
    assert found["parameters"].startswith(f"{sum(weight.numel() for weight in weights.values()) / 1e6:.1f}M; ")
    assert found["compass"].startswith(f"1 blocks of width {spec.shape.width}, ")  # half of two
    assert {"work per step", "memory, one device", "compass, memory"} <= found.keys()


def without(*names: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k not in names}))

    return change


def changed(**words: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **words}))

    return change


def token(number: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = json.loads((folder / "tokenizer.json").read_text())
        file["model"]["vocab"]["zz"] = number
        (folder / "tokenizer.json").write_text(json.dumps(file))

    return change


def no_names(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"model": {"type": "Unigram", "vocab": [["a", 0]]}}')


def only(vocab: dict[str, int]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}}))

    return change


def tensors(change: Callable[[dict[str, Tensor]], object]) -> Callable[[Path], None]:
    def work(folder: Path) -> None:
        state = load_file(folder / "model.safetensors")
        change(state)
        save_file(state, folder / "model.safetensors")

    return work


def bare(state: dict[str, Tensor]) -> None:
    """The names of a body that was saved without its head's module around it."""
    for name in list(state):
        state[name.removeprefix("model.")] = state.pop(name)


KEYS = "model.layers.1.self_attn.k_proj.weight"
REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "no start": (without("eos_token_id", "bos_token_id"), "does not say eos_token_id"),
    "start beyond": (changed(bos_token_id=ROWS), "config.json says bos_token_id 320, and the embedding has 320 rows"),
    "start of no number": (changed(bos_token_id=True), "config.json says bos_token_id True, and the embedding"),
    "strange architecture": (changed(architectures=[["x"]]), "is no causal model"),
    "large base": (changed(rope_theta=10**400), "says rope_theta is a number that no machine computes with"),
    "endless base": (changed(rope_theta=float("inf")), "says rope_theta is a number that no machine computes with"),
    "no architecture": (without("architectures"), "is no causal model"),
    "cut": (
        tensors(lambda s: s.update({KEYS: s[KEYS][:8].clone()})),
        "self_attn.k_proj.weight is (8, 32) and should be (16, 32)",
    ),
    "tokens beyond": (token(ROWS), "beyond the 320 rows"),
    "tokens below": (token(-1), "has 'zz' as number -1, beyond the 320 rows"),
    "tokens of no number": (token(True), "has 'zz' as number True, beyond the 320 rows"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "fetch the model's tokenizer"),
    "another tokenizer": (no_names, "no table of tokens"),
    "empty tokenizer": (only({}), "no token of known bytes"),
    "unreadable tokenizer": (only({"ж": 0}), "no token of known bytes"),
    "foreign tokenizer": (only({"z": 0}), "cannot be spelled in the model's: fetch its own tokenizer"),
    "more tensors": (
        tensors(lambda s: s.update({"model.more.weight": torch.ones(1)})),
        "model.more.weight is (1,) and should be not there",
    ),
    "other names": (tensors(bare), "model.embed_tokens.weight is missing: give the file of the whole model"),
    "no head": (tensors(lambda s: s.pop("lm_head.weight")), "does not say that it is the embedding"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_causal("Qwen2", tmp_path / "model")
    change, said = REFUSED[case]
    change(tmp_path / "model")
    words = ["--tokens", str(home / "tokens"), "--out", str(tmp_path / "run")]
    assert main(["import", str(tmp_path / "model"), *words]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


IGNORED = {
    "kind": (["--tokens", "TOKENS", "--kind", "mdlm"], "--kind is not for a causal model"),
    "mask": (["--tokens", "TOKENS", "--mask", "0"], "--mask is not for a causal model"),
    "length": (["--tokens", "TOKENS", "--length", "9"], "--length is not for a causal model"),
    "revision": (["--tokens", "TOKENS", "--revision", "main"], "leave it out"),
    "noise": (["--noise", "mask"], "give --tokens too"),
    "grow": (["--grow", "2"], "give --tokens too"),
    "no tokens": ([], "--tokens FOLDER makes it the start"),
}


@pytest.mark.parametrize("case", IGNORED)
def test_no_word_is_ignored(case: str, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given, said = IGNORED[case]
    words = [str(home / "tokens") if word == "TOKENS" else word for word in given]
    assert main(["import", str(home / "teller"), *words, "--out", str(tmp_path / "run")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


IN_RECIPES = {
    "missing": ('[start]\nsource = "nothere"', "no file or folder at nothere"),
    "no causal model": ('[start]\nsource = "."', "is no causal model"),
    "noise": ('[start]\nsource = "TELLER"\nnoise = "mask"', "start.noise follows from the recipe"),
    "heads": ('[start]\nsource = "TELLER"\nheads = 4', "start.heads is not for a causal model"),
    "mask": ('[start]\nsource = "TELLER"\nmask = 0', "start.mask is not for a causal model"),
    "name": ('[start]\nsource = "TELLER"\n[models.start]\nmethod = "dfm"', "call the model of that name"),
}


@pytest.mark.parametrize("case", IN_RECIPES)
def test_a_recipe_is_refused_before_it_begins(
    case: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text, said = IN_RECIPES[case]
    rest = '[corpus]\nname = "world:small"\nlimit = 9\n[tokens]\nlength = 48\n[models.teacher]\nmethod = "dfm"\n'
    Path("r.toml").write_text(rest + text.replace("TELLER", str(home / "teller")))
    assert main(["pipeline", "r.toml", "--out", "all"]) == 2
    assert said in capsys.readouterr().err
    assert not Path("all").exists()


def test_tokens_by_their_bytes(tmp_path: Path) -> None:
    """▁ inside some token of a byte-level file does not make it one that writes spaces so, nor a letter Ġ the other."""
    byte_level = {"Ġ": 0, "Ġa": 1, "<begin▁of>": 2, "b": 3}
    spaced = {"▁": 0, "▁a": 1, "<0x62>": 2, "b": 3, "<0x0A>": 4}
    maltese = {"▁": 0, "▁a": 1, "Ġ": 2, "\ud800": 3}
    for vocab, want in (
        (byte_level, {b" ": 0, b" a": 1, b"b": 3}),
        (spaced, {b" ": 0, b" a": 1, b"b": 3, b"\n": 4}),
        (maltese, {b" ": 0, b" a": 1, "Ġ".encode(): 2, b"\xed\xa0\x80": 3}),
    ):
        (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}}))
        assert bytes_of(tmp_path, 5) == want


def test_matching_a_decoder_of_another_size(home: Path) -> None:
    """The auxiliary is like the teacher, whatever the student is."""
    from tsdfm.distil.matching.auxiliary import Auxiliary
    from tsdfm.methods.idlm import IDLMSettings

    small, _, _ = start_for(home / "teller", home / "tokens", "uniform")
    assert small.decoder is not None
    large = replace(small, decoder=replace(small.decoder, hidden=20), shape=replace(small.shape, hidden=20))
    teacher = Velocity(large, large.network(), large.flow_source(), large.flow_schedule())
    settings = IDLMSettings(tokens=Path("a"), init_from=Path("b"), out=Path("c"))
    made = Auxiliary(settings.auxiliary, settings, replace(small, step_size=True), teacher)
    assert made.spec.decoder == large.decoder
    assert made.spec.step_size


def test_sizes_of_a_decoder_are_its_own(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--tokens", str(home / "tokens")]
    assert main(["import", str(home / "teller"), *words, "--out", str(tmp_path / "start")]) == 0
    words += ["--init-from", str(tmp_path / "start"), "--net.width", "64", "--out", str(tmp_path / "run")]
    assert main(["teacher", *words]) == 2
    assert "leave out net.* but net.checkpoint" in capsys.readouterr().err


def test_specs_of_old_have_no_condition(home: Path) -> None:
    """What a manifest of before says of a decoder is read as before."""
    spec, _, _ = start_for(home / "teller", home / "tokens", "uniform")
    plain = spec.plain()
    del plain["decoder"]["cond"]
    from tsdfm.settings import build

    assert build(VelocitySpec, plain, "model").decoder.cond == 0  # type: ignore[union-attr]


def test_what_a_decoder_cannot_do_is_refused(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A dropout or a latent number would be silently ignored; the next command that is advised says the noise."""
    tokens, start = ["--tokens", str(home / "tokens")], str(tmp_path / "start")
    assert main(["import", str(home / "teller"), *tokens, "--noise", "mask", "--out", start]) == 0
    assert "--source mask" in capsys.readouterr().err
    words = [*tokens, "--init-from", start, "--out", str(tmp_path / "run")]
    assert main(["teacher", *words, "--source", "mask", "--net.dropout", "0.3"]) == 2
    assert "no dropout" in capsys.readouterr().err
    assert main(["student", *words, "--dropout", "0.2"]) == 2
    assert "has no dropout" in capsys.readouterr().err
    assert main(["train", "idlm", *words, "--latent"]) == 2
    assert "no latent number, and idlm would tell it one" in capsys.readouterr().err
    assert main(["train", "di4c", *words]) == 2
    assert "no latent number, and di4c would tell it one" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_compass_sees_by_blocks_where_its_decoder_does(home: Path) -> None:
    spec, _, _ = start_for(home / "teller", home / "tokens", "uniform")
    assert spec.decoder is not None
    by_blocks = replace(spec.decoder, block=2)
    torch.manual_seed(0)
    net = spec_from(spec, replace(spec.shape, depth=1), "nce", by_blocks).network()
    embedded = net.embedding(torch.arange(6)[None]).detach().requires_grad_()
    seen: list[torch.Tensor] = []
    net.blocks[0].register_forward_hook(lambda _, given, out: seen.append(out))
    net.of(embedded)
    seen[0][0, 1].sum().backward()  # of the first block of two
    assert embedded.grad is not None
    assert (embedded.grad[0].abs().sum(-1) > 0).tolist() == [True, True, False, False, False, False]


@pytest.mark.parametrize(("said", "want"), [("apache-2.0", "apache-2.0"), ("mit\ntags: [evil]", None), (["mit"], None)])
def test_a_licence_is_one_word(said: Any, want: str | None, home: Path, tmp_path: Path) -> None:
    """It stands in the front matter of cards, and a config is someone else's."""
    write_causal("Qwen2", tmp_path / "model")
    changed(license=said)(tmp_path / "model")
    spec, _, origin = start_for(tmp_path / "model", home / "tokens", "uniform")
    assert origin["licence"] == want
    (tmp_path / "model" / "README.md").write_text("---\nlicense: mit\n---\n")
    assert start_for(tmp_path / "model", home / "tokens", "uniform")[2]["licence"] == "mit"
    for place in ("origin", "descent"):
        manifest = {place: {"source": "them", "layout": "causal", "licence": said}}
        assert card("tsdfm", spec, manifest, "00").startswith(f"---\nlicense: {want or 'other'}\nlibrary_name: tsdfm\n")
        odd = card("tsdfm", replace(spec, method="x\n- y"), manifest, "00")
        assert "- discrete-diffusion\n- tsdfm\n---\n" in odd


def test_a_decoder_that_is_told_the_time_is_float32(home: Path, tmp_path: Path) -> None:
    """Whatever its file is, and wherever that goes: its condition is reckoned in float32."""
    tokens = home / "tokens"
    spec, weights, _ = start_for(home / "teller", tokens, "uniform")
    half = {name: (tensor + 0.01).bfloat16() for name, tensor in weights.items()}  # as if it had been trained
    write_folder(tmp_path / "public", spec, load_tokenizer(tokens), half, {}, {})
    made = import_(ImportSettings(source=str(tmp_path / "public"), out=tmp_path / "run"))
    wanted = {name: tensor.float() for name, tensor in half.items()}
    for source in (tmp_path / "public", made):
        model = tsdfm.load(source, "cpu")
        assert model.sample(n=1, steps=2, seed=0).tokens.shape == (1, 48)
        torch.testing.assert_close(dict(model.velocity.net.state_dict()), wanted, atol=0, rtol=0)


def test_a_trained_decoder_does_not_lie_in_its_file(home: Path, tmp_path: Path) -> None:
    _, weights, _ = start_for(home / "teller", home / "tokens", "uniform")
    made = import_(ImportSettings(source=str(home / "teller"), tokens=home / "tokens", out=tmp_path / "run"))
    found = load_velocity(made, which="model")
    (file,) = found.checkpoint.glob("model.safetensors")  # type: ignore[union-attr]
    with file.open("r+b") as there:
        there.seek(file.stat().st_size // 2)
        there.write(bytes(file.stat().st_size // 2))
    torch.testing.assert_close(dict(found.net.state_dict()), weights, atol=0, rtol=0)


def test_new_weights_are_those_of_a_fresh_network(home: Path) -> None:
    """As drawn from seed 0, and nobody else's generator is touched for it."""
    before = torch.get_rng_state()
    spec, weights, _ = start_for(home / "teller", home / "tokens", "mask")
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(0)
    fresh = spec.network().state_dict()
    assert list(weights) == list(fresh)
    for name in condition_of(fresh):
        assert torch.equal(weights[name], fresh[name]), name


def test_what_memory_cannot_hold_is_not_loaded(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_causal("Llama", tmp_path / "model")
    tensors(lambda s: s["model.norm.weight"].fill_(float("nan")))(tmp_path / "model")
    (tmp_path / "limit").write_text("100000")
    monkeypatch.setattr("tsdfm.machine.LIMITS", (str(tmp_path / "limit"),))  # as of a small container
    with pytest.raises(UserError, match=r"weights needs .* of memory.*: take a smaller causal model"):
        start_for(tmp_path / "model", home / "tokens", "uniform")
    (tmp_path / "limit").write_text("10000000")
    with pytest.raises(UserError, match="not finite"):
        start_for(tmp_path / "model", home / "tokens", "uniform")
