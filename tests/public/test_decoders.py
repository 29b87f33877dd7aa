"""LLaDA, Dream and SDAR files: logits of transformers' own modules after the load, tokens, sampling, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.public.public_files import BPE
from torch import Tensor

import tsdfm
from tsdfm.cli import main
from tsdfm.errors import UserError
from tsdfm.nn.velocity import load_velocity
from tsdfm.public.run import run
from tsdfm.public.settings import ImportSettings
from tsdfm.tokens.tokenizer import load_tokenizer

transformers = pytest.importorskip("transformers")
ROWS, MASK, END, LENGTH = 320, 305, 299, 16
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "vocab_size": ROWS, "max_position_embeddings": LENGTH, "head_dim": 8,
}  # fmt: skip
THEIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "llada": ("Llama", {"num_key_value_heads": 4, "rms_norm_eps": 1e-5, "theta": 5e5}),
    "dream": ("Qwen2", {"rms_norm_eps": 1e-6, "theta": 1e6}),
    "sdar": ("Qwen3", {"rms_norm_eps": 1e-6, "theta": 1e6, "head_dim": 16, "tie_word_embeddings": True}),
}
LLADA = {
    "model.embed_tokens": "wte", "model.norm": "ln_f", "lm_head": "ff_out", "model.layers": "blocks",
    "self_attn.o_proj": "attn_out", "self_attn.": "", "mlp.gate_proj": "ff_proj", "mlp.up_proj": "up_proj",
    "mlp.down_proj": "ff_out", "input_layernorm": "attn_norm", "post_attention_layernorm": "ff_norm",
}  # fmt: skip


def module(kind: str) -> Any:
    """The causal module of the same make, with random weights of a size that shows."""
    name, words = THEIRS[kind]
    sizes = {**SIZES, "tie_word_embeddings": False, **words}
    rope = {"rope_type": "default", "rope_theta": sizes.pop("theta")}
    config = getattr(transformers, f"{name}Config")(**sizes, rope_parameters=rope)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    made = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    for weight in made.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return made


def config_of(kind: str) -> dict[str, Any]:
    _, words = THEIRS[kind]
    common = {"mask_token_id": MASK, "eos_token_id": END, "rope_theta": words["theta"]}
    if kind == "llada":
        sizes = {"d_model": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 4, "mlp_hidden_size": 48}
        more = {"weight_tying": False, "rms_norm_eps": 1e-5, "max_sequence_length": LENGTH}
        return {"model_type": "llada", "architectures": ["LLaDAModelLM"], **common, **sizes, **more}
    given = {key: value for key, value in {**SIZES, **words}.items() if key != "theta"}
    return {"model_type": {"dream": "Dream", "sdar": "sdar"}[kind], **common, **given}


def renamed(name: str) -> str:
    for theirs, llada in LLADA.items():
        name = name.replace(theirs, llada)
    return f"model.transformer.{name}"


def write_decoder(kind: str, folder: Path) -> Any:
    """A folder as the hub would give it: two shards with their index, config and the tokenizer's file."""
    folder.mkdir(parents=True)
    theirs = module(kind)
    state = {name: tensor.clone() for name, tensor in theirs.state_dict().items()}
    if kind == "sdar":
        del state["lm_head.weight"]
    if kind == "llada":
        state = {renamed(name): tensor for name, tensor in state.items()}
    names = sorted(state)
    shards = {"model-1.safetensors": names[:7], "model-2.safetensors": names[7:]}
    for file, part in shards.items():
        save_file({name: state[name] for name in part}, folder / file)
    index = {name: file for file, part in shards.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (folder / "config.json").write_text(json.dumps(config_of(kind)))
    BPE_ENGINE.save(str(folder / "tokenizer.json"))
    return theirs


def engine() -> Any:
    """Ids: the pairs' own, then end-of-text, gaps up to [MASK], and some special tokens behind it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocab = {token: i for i, token in enumerate(BPE.vocab[:END]) if i != BPE.end_of_text}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[pair for pair in BPE.merges if "".join(pair) in vocab]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    made.decoder = decoders.ByteLevel()
    plain = json.loads(made.to_str())
    special = {"<|end|>": END, "<|mask|>": MASK, "<|role|>": 307}
    for token, i in special.items():
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        plain["added_tokens"].append({"id": i, "content": token, **flags})
        plain["model"]["vocab"][token] = i
    return Tokenizer.from_str(json.dumps(plain))


BPE_ENGINE = engine()


def ours_of(tokens: Tensor) -> Tensor:
    """Their ids as ours: [MASK] and the last one change places."""
    swapped = torch.where(tokens == MASK, ROWS - 1, tokens)
    return torch.where(tokens == ROWS - 1, MASK, swapped)


@pytest.mark.parametrize("kind", THEIRS)
def test_an_imported_decoder_answers_as_the_public_one(kind: str, tmp_path: Path) -> None:
    theirs = write_decoder(kind, tmp_path / "public")
    made = run(ImportSettings(source=str(tmp_path / "public"), out=tmp_path / "run"))
    model = load_velocity(made)
    tokens = torch.randint(ROWS, (3, LENGTH), generator=torch.Generator().manual_seed(1))
    tokens[:, 3::4] = MASK
    block = torch.arange(LENGTH) // 4
    seen = torch.zeros(LENGTH, LENGTH)
    if kind == "sdar":
        seen = torch.where(block[None] <= block[:, None], 0.0, torch.finfo(torch.float32).min)
    with torch.no_grad():
        want: Tensor = theirs(tokens, attention_mask=seen[None, None].expand(3, 1, -1, -1)).logits
        got = model.net(ours_of(tokens), torch.zeros(3))
    if kind == "dream":
        want = torch.cat([want[:, :1], want[:, :-1]], dim=1)
    back = ours_of(torch.arange(ROWS))[: ROWS - 1]
    torch.testing.assert_close(got, want[..., back], atol=1e-5, rtol=1e-5)
    assert model.spec.jump == {"llada": "llada", "dream": "dream-origin", "sdar": "llada:4"}[kind]
    assert load_tokenizer(made / "tokenizer").fingerprint == model.spec.tokenizer


@pytest.mark.parametrize("kind", THEIRS)
def test_a_decoder_writes_and_goes_out_and_in(kind: str, tmp_path: Path) -> None:
    write_decoder(kind, tmp_path / "public")
    model = tsdfm.from_pretrained(tmp_path / "public", "cpu", length=8)
    samples = model.sample(n=2, steps=4, seed=0, prefix="Mia")
    assert samples.tokens.shape == (2, 8)
    assert int(samples.tokens.max()) < ROWS - 1
    assert samples.texts[0].startswith("Mia")
    made = run(ImportSettings(source=str(tmp_path / "public"), out=tmp_path / "run", length=8))
    assert main(["export", str(made), "--to", str(tmp_path / "out")]) == 0
    again = tsdfm.load(tmp_path / "out", "cpu")
    assert again.velocity.spec == model.velocity.spec
    assert torch.equal(again.sample(n=2, steps=4, seed=0, prefix="Mia").tokens, samples.tokens)


def test_blocks_of_another_length(tmp_path: Path) -> None:
    """The public sampler is told the length of a block, and no config says it: neither does ours have to."""
    write_decoder("sdar", tmp_path / "public")
    made = run(ImportSettings(source=str(tmp_path / "public"), out=tmp_path / "run", block=8))
    assert load_velocity(made).spec.jump == "llada:8"
    model = tsdfm.from_pretrained(tmp_path / "public", "cpu", block=8)
    first = torch.randint(ROWS - 1, (1, LENGTH), generator=torch.Generator().manual_seed(1))
    changed = first.clone()
    changed[:, 7] = (changed[:, 7] + 1) % (ROWS - 1)
    before, after = (model.velocity.net(tokens, torch.zeros(1)) for tokens in (first, changed))
    assert not torch.equal(before[:, 0], after[:, 0])  # the last of a block of eight is seen by its first
    changed = first.clone()
    changed[:, 8] = (changed[:, 8] + 1) % (ROWS - 1)
    assert torch.equal(before[:, :8], model.velocity.net(changed, torch.zeros(1))[:, :8])
    write_decoder("dream", tmp_path / "other")
    with pytest.raises(UserError, match="leave out --block"):
        tsdfm.from_pretrained(tmp_path / "other", "cpu", block=8)


def test_a_tied_head_is_the_embedding_whatever_stands_beside_it(tmp_path: Path) -> None:
    """As transformers has it: a copy of the head in the file is not looked at."""
    write_decoder("sdar", tmp_path / "public")
    plain = tsdfm.load(tmp_path / "public", "cpu")
    changed(lambda s: s.update({"lm_head.weight": torch.ones(ROWS, 32)}))(tmp_path / "public")
    made = run(ImportSettings(source=str(tmp_path / "public"), out=tmp_path / "run"))
    model = load_velocity(made)
    assert torch.equal(model.net.head.weight, plain.velocity.net.head.weight)
    left = json.loads((made / "manifest.json").read_text())["origin"]["left_out"]
    assert left == {"lm_head.weight": "the embedding is the head"}


@pytest.mark.parametrize("shard", ["model-1.safetensors", "model-2.safetensors"])
def test_of_several_files_the_bad_one_is_named(shard: str, tmp_path: Path) -> None:
    write_decoder("dream", tmp_path / "public")
    path = tmp_path / "public" / shard
    state = load_file(path)
    next(iter(state.values())).fill_(float("nan"))
    save_file(state, path)
    with pytest.raises(UserError, match=rf"{shard} has numbers that are not finite"):
        run(ImportSettings(source=str(tmp_path / "public"), out=tmp_path / "run"))


def test_weights_stay_in_bf16(tmp_path: Path) -> None:
    write_decoder("dream", tmp_path / "public")
    for file in sorted((tmp_path / "public").glob("*.safetensors")):
        save_file({name: tensor.bfloat16() for name, tensor in load_file(file).items()}, file)
    model = tsdfm.load(tmp_path / "public", "cpu")
    assert {weight.dtype for weight in model.velocity.net.parameters()} == {torch.bfloat16}
    made = run(ImportSettings(source=str(tmp_path / "public"), out=tmp_path / "run"))
    assert {weight.dtype for weight in load_velocity(made).net.parameters()} == {torch.bfloat16}
    assert torch.equal(tsdfm.load(made, "cpu").sample(n=1, steps=2).tokens, model.sample(n=1, steps=2).tokens)


def test_its_tokenizer(tmp_path: Path) -> None:
    write_decoder("llada", tmp_path / "public")
    tokenizer = tsdfm.load(tmp_path / "public", "cpu").tokenizer
    text = "Mia has three red balls.<|role|> Tom"
    ids = tokenizer.encode(text)
    assert ids == BPE_ENGINE.encode(text, add_special_tokens=False).ids
    assert 307 in ids
    assert tokenizer.decode([*ids, END]) == "Mia has three red balls. Tom"
    assert (tokenizer.vocab_size, tokenizer.end_of_text) == (ROWS - 1, END)
    with pytest.raises(UserError, match="spells the model's mask token"):
        tokenizer.encode("a <|mask|>")


def test_a_tokenizer_of_two_files_is_qwens(tmp_path: Path) -> None:
    """Dream has no tokenizer.json: pairs, and added tokens in the config."""
    write_decoder("dream", tmp_path / "public")
    (tmp_path / "public" / "tokenizer.json").unlink()
    plain = json.loads(BPE_ENGINE.to_str())
    added = {str(token["id"]): {"content": token["content"], "special": True} for token in plain["added_tokens"]}
    vocab = {token: i for token, i in plain["model"]["vocab"].items() if str(i) not in added}
    merges = [" ".join(line) if isinstance(line, list) else line for line in plain["model"]["merges"]]
    (tmp_path / "public" / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "public" / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    (tmp_path / "public" / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    tokenizer = tsdfm.load(tmp_path / "public", "cpu").tokenizer
    names = (str(tmp_path / "public" / name) for name in ("vocab.json", "merges.txt"))
    theirs = transformers.Qwen2Tokenizer(*map(read_qwen, names))
    for text in ("Mia has 127 red balls.\n\n  She can't!", "  two\tparts — e\u0301t\u00e9 ", "a\r\nb   c"):
        assert tokenizer.encode(text) == theirs.encode(text, add_special_tokens=False), text
    assert tokenizer.encode("Tom<|role|>")[-1] == 307


def read_qwen(path: str) -> Any:
    """What transformers takes: the files' contents, or in older versions their paths."""
    if int(transformers.__version__.split(".")[0]) < 5:
        return path
    text = Path(path).read_text()
    return json.loads(text) if path.endswith("json") else [tuple(x.split(" ")) for x in text.split("\n")[1:] if x]


def changed(change: Callable[[dict[str, Tensor]], object]) -> Callable[[Path], None]:
    def work(folder: Path) -> None:
        state = {k: v for file in sorted(folder.glob("*.safetensors")) for k, v in load_file(file).items()}
        for file in [*folder.glob("*.safetensors"), folder / "model.safetensors.index.json"]:
            file.unlink()
        change(state)
        save_file(state, folder / "model.safetensors")

    return work


def config(drop: str = "", **words: Any) -> Callable[[Path], None]:
    def work(folder: Path) -> None:
        path = folder / "config.json"
        given = {key: value for key, value in json.loads(path.read_text()).items() if key not in drop.split()}
        path.write_text(json.dumps({**given, **words}))

    return work


LAYER = "model.layers.1."
CASES: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (changed(lambda s: s.pop(f"{LAYER}mlp.up_proj.weight")), "up_proj.weight is missing"),
    "further": (changed(lambda s: s.update({f"{LAYER}more.weight": torch.ones(2)})), "more.weight has no place"),
    "shape": (changed(lambda s: s.update({f"{LAYER}mlp.up_proj.weight": torch.ones(48, 16)})), "has the shape"),
    "nan": (changed(lambda s: s["model.norm.weight"].fill_(float("nan"))), "not finite"),
    "no head": (changed(lambda s: s.pop("lm_head.weight")), "does not say that it is the embedding"),
    "causal": (config("mask_token_id", model_type="qwen2"), "a causal model of the same make"),
    "heads": (config(num_attention_heads=8, head_dim=8), "disagree|has the shape"),
    "depth": (config(num_hidden_layers=3), "they disagree"),
    "vocabulary": (config(vocab_size=5), "says 5 tokens and the embedding has 320 rows"),
    "end": (config(eos_token_id=-1), "eos_token_id -1, and the embedding has 320 rows"),
    "places": (config(use_mrope=True), "says use_mrope True"),
    "scalar rows": (changed(lambda s: s.update({"model.embed_tokens.weight": torch.tensor(1.0)})), "width must be"),
    "no theta": (config("rope_theta rope_parameters"), "does not say rope_theta"),
    "rotation": (config(rope_scaling={"type": "yarn", "factor": 4.0}), "says rope_scaling"),
    "window": (config(use_sliding_window=True), "says use_sliding_window True"),
    "scalar": (changed(lambda s: s.update({"model.layers.0.mlp.gate_proj.weight": torch.tensor(1.0)})), "hidden"),
    "no end": (config("eos_token_id"), "does not say eos_token_id"),
    "no number": (config(eos_token_id=[True]), "eos_token_id True, and the embedding has 320 rows"),
    "mask of no number": (config(mask_token_id=True), "none of the 320 rows"),
    "mask": (config(mask_token_id=ROWS), "none of the 320 rows"),
    "tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "no tokenizer.json"),
    "other tokenizer": (lambda folder: (folder / "tokenizer.json").write_text("{}"), "not of this model"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_bad_decoder_is_refused(case: str, tmp_path: Path) -> None:
    write_decoder("dream", tmp_path / "public")
    change, said = CASES[case]
    change(tmp_path / "public")
    with pytest.raises(UserError, match=said):
        run(ImportSettings(source=str(tmp_path / "public"), out=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["llada", "dream"])
def test_a_decoder_is_trained_on_and_distilled(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_decoder(kind, tmp_path / "public")
    assert main(["import", "public", "--out", "model"]) == 0
    assert main(["corpus", "--name", "world:small", "--limit", "40", "--valid", "0.2", "--out", "corpus"]) == 0
    words = ["--tokenizer-files", "model", "--length", str(LENGTH), "--workers", "1"]
    assert main(["tokens", "--corpus", "corpus", *words, "--out", "tokens"]) == 0
    small = ["--tokens", "tokens", "--init-from", "model", "--loop.device", "cpu", "--loop.steps", "3"]
    small += ["--loop.batch", "8", "--optim.warmup", "1", "--optim.ema", "0.9"]
    source = ["--source", "mask"]
    for method, more in {
        kind: source,
        "sdtt": ["--round", "2"],
        "fs-dfm": [],
        "idlm": ["--auxiliary.alone", "1"],
    }.items():
        assert main(["train", method, *small, *more, "--out", method]) == 0, method
        before, after = load_velocity("model"), load_velocity(method, which="model")
        assert after.spec.decoder is not None
        assert bool(after.spec.decoder.cond) == after.spec.step_size  # what is told nothing new stays as it is
        moved = [n for n, w in before.net.state_dict().items() if not torch.equal(w, after.net.state_dict()[n])]
        assert len(moved) > 10, method
        made = tsdfm.load(method, "cpu").sample(n=2, steps=2, seed=0).tokens
        assert int(made.max()) < after.spec.vocab


def test_the_public_sizes() -> None:
    """The numbers of weights of the real files, on no device."""
    from tsdfm.nn.ddit import parameters
    from tsdfm.nn.decoder import Decoder, DecoderShape

    real = {
        8_015_581_184: (126464, DecoderShape(width=4096, depth=32, heads=32, kv_heads=32, head=128, hidden=12288)),
        7_615_616_512: (152064, DecoderShape(
            width=3584, depth=28, heads=28, kv_heads=4, head=128, hidden=18944, biases=True)),
    }  # fmt: skip
    for count, (rows, shape) in real.items():
        with torch.device("meta"):
            assert parameters(Decoder(shape, vocab=rows, tokens=rows)) == count
    sdar = DecoderShape(width=2560, depth=36, heads=32, kv_heads=8, head=128, hidden=9728, head_norms=True)
    with torch.device("meta"):
        net = Decoder(sdar, vocab=151936, tokens=151936)
    assert parameters(net) - net.head.weight.numel() == 4_022_468_096  # its head is the embedding
