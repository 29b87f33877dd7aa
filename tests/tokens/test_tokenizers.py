"""Round trips are exact for any text, and nothing a model can write breaks decoding."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from local_hub import nobody, online, serving
from tsdfm.errors import UserError
from tsdfm.tokens.bpe import PairTokenizer, byte_symbols, gpt2, train_bpe
from tsdfm.tokens.choose import tokenizer_for
from tsdfm.tokens.settings import TokensSettings
from tsdfm.tokens.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer

SAMPLE = [
    "The cat sat on the mat, and the dog sat on the log.\r\n" * 5,
    "naïve café \U0001f600 日本語\n\n  spaces  ",
] * 20
BYTE, BPE = ByteTokenizer(), train_bpe(SAMPLE, 300)
KINDS = [BYTE, BPE]

HARD = [
    "",
    " leading and trailing ",
    "\r\n\n\r\t\x00\x07\x1b[0m\x7f",
    "e\u0301 is not \u00e9; \u0301 alone",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 flags \U0001f1e9\U0001f1ea",
    "<|endoftext|> and [MASK] and <|endoftext|>",
    "\u2028\u2029\x85\u00a0\ufeff\ufffd",
    "Ġ Ċ ÿ are byte symbols too",
]


@pytest.mark.parametrize("tokenizer", KINDS, ids=lambda t: t.name)
@pytest.mark.parametrize("text", HARD)
def test_hard_texts_come_back(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.end_of_text not in ids
    assert tokenizer.characters[ids].sum() == len(text)


@pytest.mark.parametrize("tokenizer", KINDS, ids=lambda t: t.name)
def test_a_token_is_text_by_itself_or_a_part_of_a_character(tokenizer: Tokenizer) -> None:
    for piece, whole, characters in zip(tokenizer.pieces, tokenizer.whole, tokenizer.characters, strict=True):
        cut = "\ufffd" in piece.decode("utf-8", "replace") and "\ufffd".encode() not in piece
        assert whole == (-1 if cut else characters)
    assert (tokenizer.whole < 0).any()


@pytest.mark.parametrize("tokenizer", KINDS, ids=lambda t: t.name)
@given(text=st.text(max_size=60))
def test_any_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode_bytes(np.array(ids, dtype=np.uint16)) == text.encode()
    assert int(tokenizer.characters[ids].sum()) == len(text)


@pytest.mark.parametrize("tokenizer", KINDS, ids=lambda t: t.name)
@given(ids=st.lists(st.integers(-3, 400), max_size=40))
def test_any_ids_decode(tokenizer: Tokenizer, ids: list[int]) -> None:
    assert isinstance(tokenizer.decode(ids), str)
    assert tokenizer.decode(torch.tensor(ids)) == tokenizer.decode(ids)


def test_batches_and_arrays_agree_with_single_texts() -> None:
    for tokenizer in KINDS:
        single = [tokenizer.encode(text) for text in HARD]
        assert tokenizer.encode_batch(HARD) == single
        arrays = tokenizer.encode_arrays(HARD, np.uint16)
        assert [a.tolist() for a in arrays] == single
        assert all(a.dtype == np.uint16 for a in arrays)


def test_documents_of_a_row() -> None:
    end = BYTE.end_of_text
    row = [*b"one", end, *b"two", end, end, end]
    assert BYTE.documents(row) == BYTE.documents(np.array(row)) == ["one", "two"]
    assert BYTE.decode(row, end="¶") == "one¶two¶¶¶"
    assert BYTE.first_document(torch.tensor(row)) == "one"
    assert BYTE.first_document([end, *b"late"]) == ""


def test_half_a_character_and_a_mask_decode_to_the_replacement_character() -> None:
    assert BYTE.decode([0xC3, 65]) == "\ufffdA"
    assert BYTE.decode([65, BYTE.vocab_size]) == "A\ufffd"


def test_half_a_surrogate_pair_is_the_users_error() -> None:
    for tokenizer in KINDS:
        with pytest.raises(UserError, match="surrogate"):
            tokenizer.encode("a\ud800")


def test_a_size_that_a_given_tokenizer_has_not_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    BPE.save(tmp_path / "given/tokenizer")
    for name, size, said in (("usual", 8192, ""), ("own", 300, ""), ("other", 400, "this tokenizer has 300 tokens")):
        asked = TokensSettings(
            corpus=tmp_path, out=tmp_path / name, tokenizer_files=tmp_path / "given/tokenizer", vocab_size=size
        )
        assert tokenizer_for(asked).fingerprint == BPE.fingerprint
        told = "".join(capsys.readouterr())
        assert said in told
        assert bool(told) == bool(said)


def hand_made() -> PairTokenizer:
    vocab = [*sorted(byte_symbols(), key=byte_symbols().__getitem__), "he", "ll", "hell", "hello", "Ġhello"]
    return PairTokenizer(vocab, [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "hello")], len(vocab))


def test_merges_are_applied_in_their_order() -> None:
    tokenizer = hand_made()
    assert tokenizer.encode("hello hello hell help") == [259, 260, 32, 258, 32, 256, ord("l"), ord("p")]
    assert (tokenizer.vocab_size, tokenizer.end_of_text) == (262, 261)


def test_training_is_repeatable_and_keeps_to_its_size() -> None:
    again = train_bpe(SAMPLE, 300)
    assert again.fingerprint == BPE.fingerprint
    assert (BPE.vocab_size, BPE.end_of_text) == (300, 299)
    assert len(BPE.encode(SAMPLE[0])) < len(SAMPLE[0]) / 2
    tiny = train_bpe(["ab"], 5000)
    assert tiny.vocab_size < 300
    assert tiny.decode(tiny.encode(HARD[4])) == HARD[4]


@pytest.mark.parametrize("tokenizer", [*KINDS, hand_made()], ids=["byte", "trained", "hand"])
def test_saved_tokenizers_are_the_same(tmp_path: Path, tokenizer: Tokenizer) -> None:
    tokenizer.save(tmp_path / "tokenizer")
    for folder in (tmp_path / "tokenizer", tmp_path):
        loaded = load_tokenizer(folder)
        assert loaded.fingerprint == tokenizer.fingerprint
        assert loaded.encode_batch(HARD) == tokenizer.encode_batch(HARD)
        assert loaded.name == tokenizer.name


def test_a_damaged_or_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)
    path = BPE.save(tmp_path)
    saved = json.loads(path.read_text())
    saved["vocab"][280], saved["vocab"][281] = saved["vocab"][281], saved["vocab"][280]
    path.write_text(json.dumps(saved))
    with pytest.raises(UserError, match="damaged"):
        load_tokenizer(tmp_path)
    path.write_text(path.read_text()[:100])
    with pytest.raises(UserError, match="damaged"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("names", [("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt")])
def test_gpt2_from_its_two_files(tmp_path: Path, names: tuple[str, str]) -> None:
    ids = {token: i for i, token in enumerate(BPE.vocab[:-1])} | {"<|endoftext|>": 299}
    (tmp_path / names[0]).write_text(json.dumps(ids))
    lines = ["#version: 0.2", *(f"{a} {b}" for a, b in BPE.merges), ""]
    (tmp_path / names[1]).write_text("\n".join(lines), encoding="utf-8")
    tokenizer = gpt2(tmp_path)
    assert tokenizer.encode_batch(HARD + SAMPLE) == BPE.encode_batch(HARD + SAMPLE)
    assert (tokenizer.end_of_text, tokenizer.vocab_size, tokenizer.name) == (299, 300, "gpt2")
    assert tokenizer.fingerprint == BPE.fingerprint


def test_gpt2_from_the_hub_and_then_from_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Where neither has it, that is said at once; the client's own tries, a line each, took half a minute."""
    folder = tmp_path / "gpt2"
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(BPE.vocab[:-1])}))
    (folder / "merges.txt").write_text("\n".join(f"{a} {b}" for a, b in BPE.merges), encoding="utf-8")
    online(monkeypatch, nobody(), tmp_path / "cache")
    with pytest.raises(
        UserError, match=r"not on this machine, and the hub cannot be reached: give its folder as --tokenizer-files$"
    ):
        gpt2()
    with serving({"openai-community/gpt2": folder}) as address:
        online(monkeypatch, address, tmp_path / "cache")
        assert gpt2().fingerprint == BPE.fingerprint
    assert gpt2().fingerprint == BPE.fingerprint
    assert "Retrying" not in capfd.readouterr().err


def test_gpt2_files_that_are_not_there_or_not_right(tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(UserError, match=r"encoder\.json \(or vocab\.json\)"):
        gpt2(tmp_path)
    (tmp_path / "encoder.json").write_text('{"a": 0, "b": 1}')
    (tmp_path / "vocab.bpe").write_text("#version: 0.2\na b\n")
    with pytest.raises(UserError, match="not a byte-level BPE"):
        gpt2(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"tsdfm\[hub\]"):
        gpt2()
