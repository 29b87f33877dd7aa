"""The storyteller on a tiny one of random weights: its law, its draws, its texts, its judge."""

from __future__ import annotations

import math
import struct
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tsdfm.corpus.run import run as make_corpus
from tsdfm.corpus.settings import CorpusSettings
from tsdfm.corpus.store import read_split
from tsdfm.corpus.storyteller import PUBLIC, SHARE_THAT_ENDS, START, TOKENIZER, WEIGHTS, storyteller_in
from tsdfm.errors import UserError
from tsdfm.judges.load import judge_from
from tsdfm.judges.storyteller import storyteller_judge
from tsdfm.report.bench import features_of

WORDS = [b" ", b"a", b"b", b" a", b" b", b"ab", b" ab", b"\n"]
PIECES = [b"<unk>", b"<s>", b"</s>", *(f"<0x{i:02X}>".encode() for i in range(256)), *WORDS]
DIM, HIDDEN, LAYERS, HEADS, POSITIONS = 8, 12, 2, 2, 6


def write_storyteller(folder: Path, seed: int = 0, **changed: str) -> Path:
    folder.mkdir(exist_ok=True)
    noise = torch.Generator().manual_seed(seed)
    vocab = len(PIECES)
    shapes = {"wq": (DIM, DIM), "wk": (DIM, DIM), "wv": (DIM, DIM), "wo": (DIM, DIM)}
    shapes |= {
        "w1": (HIDDEN, DIM),
        "w3": (HIDDEN, DIM),
        "w2": (DIM, HIDDEN),
        "attention_norm": (DIM,),
        "ffn_norm": (DIM,),
    }
    weights = {name: torch.randn(LAYERS, *shape, generator=noise).half() for name, shape in shapes.items()}
    weights["embedding"] = torch.randn(vocab, DIM, generator=noise).half()
    weights["final_norm"] = torch.ones(DIM).half()
    sizes = {"dim": DIM, "hidden": HIDDEN, "layers": LAYERS, "heads": HEADS, "positions": POSITIONS, "vocab": vocab}
    save_file(weights, folder / WEIGHTS, metadata={name: str(n) for name, n in sizes.items()} | changed)
    scored = (struct.pack("<fi", float(len(piece)), len(piece)) + piece for piece in PIECES)
    (folder / TOKENIZER).write_bytes(struct.pack("<i", 6) + b"".join(scored))
    return folder


def write_public(folder: Path, like: Path, vocab: int = len(PIECES)) -> Path:
    """The same model as llama2.c's own exporter writes it, in its first format."""
    folder.mkdir()
    (folder / TOKENIZER).write_bytes((like / TOKENIZER).read_bytes())
    w, size = storyteller_in(like).weights, DIM // HEADS
    angles = torch.arange(POSITIONS)[:, None] * 1e4 ** (-torch.arange(0, size, 2) / size)
    order = ("embedding", "attention_norm", "wq", "wk", "wv", "wo", "ffn_norm", "w1", "w2", "w3", "final_norm")
    head = struct.pack("<7i", DIM, HIDDEN, LAYERS, HEADS, HEADS, vocab, POSITIONS)
    numbers = [*(w[name] for name in order), angles.cos(), angles.sin()]
    (folder / PUBLIC).write_bytes(head + b"".join(each.numpy().tobytes() for each in numbers))
    return folder


def test_the_public_file_is_the_same_model(folder: Path, tmp_path: Path) -> None:
    ours, theirs = storyteller_in(folder), storyteller_in(write_public(tmp_path / "public", folder))
    tokens = torch.tensor([[START, 262, 260, 261]])
    assert torch.equal(ours.logits(tokens), theirs.logits(tokens))
    assert (ours.law, theirs.file) == (theirs.law, "stories15M.bin")


@pytest.mark.parametrize("cut", [10, 200, -4])
def test_a_public_file_that_is_cut_short_is_refused(folder: Path, tmp_path: Path, cut: int) -> None:
    path = write_public(tmp_path / "public", folder) / PUBLIC
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(UserError, match=r"stories15M.bin .* fetch"):
        storyteller_in(path.parent)


def test_a_public_file_with_a_head_of_its_own_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="tied head"):
        storyteller_in(write_public(tmp_path / "public", folder, vocab=-len(PIECES)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_storyteller(tmp_path_factory.mktemp("teller"))


def reference_logits(folder: Path, tokens: list[int]) -> torch.Tensor:
    """The decoder position by position in float64, from its formulas, with rotations as complex numbers."""
    teller = storyteller_in(folder)
    w = {name: tensor.double() for name, tensor in teller.weights.items()}
    size = DIM // HEADS
    norm = lambda x, g: x / (x.square().mean() + 1e-5).sqrt() * g  # noqa: E731
    xs = [w["embedding"][i] for i in tokens]
    for layer in range(LAYERS):
        keys, values, out = [], [], []
        for place, x in enumerate(xs):
            h = norm(x, w["attention_norm"][layer])
            q, k, v = ((w[name][layer] @ h).view(HEADS, size) for name in ("wq", "wk", "wv"))
            angle = place * 1e4 ** (-torch.arange(0, size, 2).double() / size)
            turn = torch.polar(torch.ones_like(angle), angle)
            q, k = (
                torch.view_as_real(torch.view_as_complex(y.reshape(HEADS, -1, 2).contiguous()) * turn).reshape(
                    HEADS, size
                )
                for y in (q, k)
            )
            keys.append(k)
            values.append(v)
            weight = (torch.stack(keys, 1) @ q[:, :, None]).squeeze(-1).div(size**0.5).softmax(-1)
            seen = (weight[:, None] @ torch.stack(values, 1)).flatten()
            x = x + w["wo"][layer] @ seen
            h = norm(x, w["ffn_norm"][layer])
            out.append(x + w["w2"][layer] @ (torch.nn.functional.silu(w["w1"][layer] @ h) * (w["w3"][layer] @ h)))
        xs = out
    return torch.stack([w["embedding"] @ norm(x, w["final_norm"]) for x in xs])


def test_logits_are_those_of_the_formulas(folder: Path) -> None:
    tokens = [START, 260, 265, 261, 259]
    want = (reference_logits(folder, tokens) / 0.9).log_softmax(-1)
    got = storyteller_in(folder).logits(torch.tensor([tokens]))[0].double().log_softmax(-1)
    torch.testing.assert_close(got[:, 3:], want[:, 3:], atol=1e-4, rtol=0)
    torch.testing.assert_close(got[:, START], want[:, :3].logsumexp(-1), atol=1e-4, rtol=0)


def test_one_token_at_a_time_is_the_whole_row(folder: Path) -> None:
    teller, tokens = storyteller_in(folder), torch.tensor([[START, 260, 265, 261]])
    shape = (LAYERS, 1, HEADS, POSITIONS, DIM // HEADS)
    cache = (torch.zeros(shape), torch.zeros(shape))
    steps = [teller.logits(tokens[:, i : i + 1], cache, i) for i in range(4)]
    torch.testing.assert_close(torch.cat(steps, 1), teller.logits(tokens))


@pytest.mark.parametrize("text", ["a ab b", "ab", "abab\na", "é a…", "", " a  b "])
def test_text_to_tokens_and_back(folder: Path, text: str) -> None:
    words = storyteller_in(folder).vocabulary
    ids, characters = words.encode(text)
    assert words.decode(ids) == text
    assert sum(characters) == len(text)


def test_the_best_score_merges_first(folder: Path) -> None:
    words = storyteller_in(folder).vocabulary
    assert [PIECES[i] for i in words.encode("ab ba")[0]] == [b" ab", b" b", b"a"]


def test_a_score_is_minus_log_p_with_the_end_and_z(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = storyteller_judge(folder, "cpu")
    monkeypatch.setitem(SHARE_THAT_ENDS, judge.reader.teller.law, 0.5)  # type: ignore[attr-defined]
    judge = storyteller_judge(folder, "cpu")
    ids, _ = judge.reader.teller.vocabulary.encode("ab a")  # type: ignore[attr-defined]
    law = (reference_logits(folder, [START, *ids]) / 0.9).log_softmax(-1)
    want = -sum(float(law[i, token]) for i, token in enumerate(ids)) - float(law[len(ids), :3].logsumexp(0))
    (score,) = judge.score(["ab a"])
    assert score.nll == pytest.approx(want + math.log(0.5), abs=1e-4)
    assert (score.tokens, score.characters) == (len(ids) + 1, 4)
    (rest,) = judge.score(["ab a"], prefixes=["ab"])
    assert rest.nll == pytest.approx(want + float(law[0, ids[0]]), abs=1e-4)


def test_a_text_that_cannot_end_in_time_is_scored_without_z(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = " ".join("a" * 8)
    (before,) = storyteller_judge(folder, "cpu").score([long])
    monkeypatch.setitem(SHARE_THAT_ENDS, storyteller_in(folder).law, 0.5)
    assert storyteller_judge(folder, "cpu").score([long]) == [before]
    assert before.tokens == 9


def test_its_features_are_kept_for_tables_with_mauve(folder: Path) -> None:
    judge, texts = storyteller_judge(folder, "cpu"), ("ab a", "b")
    assert features_of(judge, texts) is features_of(judge, texts)
    assert features_of(judge, texts).shape == (2, DIM)


def test_first_tokens_are_drawn_by_their_law(folder: Path) -> None:
    teller = storyteller_in(folder)
    law = teller.logits(torch.tensor([[START]]))[0, 0].double().softmax(-1)
    runs = 1500
    tokens = Counter(row[0] for row in teller.draws(seed=5, numbers=range(runs)))
    common = [i for i in range(len(PIECES)) if law[i] * runs >= 8]
    rest = 1 - float(law[common].sum())
    expected = [*(float(law[i]) * runs for i in common), rest * runs]
    seen = [*(tokens[i] for i in common), runs - sum(tokens[i] for i in common)]
    square = sum((a - b) ** 2 / b for a, b in zip(seen, expected, strict=True))
    assert square < len(common) + 4 * (2 * len(common)) ** 0.5


def test_a_story_depends_on_its_seed_and_number_alone(folder: Path) -> None:
    teller = storyteller_in(folder)
    together, apart = list(teller.stories(1, 12, batch=16)), list(teller.stories(1, 12, batch=4))
    assert together == apart
    assert together != list(teller.stories(2, 12))


def test_corpus_and_judge_by_name(folder: Path, tmp_path: Path) -> None:
    name = f"storyteller:{folder}"
    settings = CorpusSettings(out=tmp_path / "corpus", name=name, limit=20, valid=0.2, seed=3)
    out = make_corpus(settings)
    texts = [*read_split(out, "train"), *read_split(out, "valid")]
    drawn = [text for text in storyteller_in(folder).stories(3, 20) if text.strip()]
    assert sorted(texts) == sorted(drawn)
    assert str(folder) not in (out / "manifest.json").read_text().replace(name, "")
    assert make_corpus(settings) == out  # it is there already
    assert judge_from(name, "cpu").fingerprint.startswith("storyteller:")


def test_what_is_no_storyteller_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"stories15M\.bin \(or storyteller\.safetensors\) is missing"):
        storyteller_in(tmp_path)
    with pytest.raises(UserError, match="give limit"):
        make_corpus(CorpusSettings(out=tmp_path / "c", name=f"storyteller:{write_storyteller(tmp_path / 'a')}"))
    with pytest.raises(UserError, match=r"does not fit its metadata: .* has the shape"):
        storyteller_in(write_storyteller(tmp_path / "b", dim="16"))
    with pytest.raises(UserError, match=r"lacks|cannot be read"):
        storyteller_in(write_storyteller(tmp_path / "c", heads="two"))
    with pytest.raises(UserError, match="sizes are at least 1"):
        storyteller_in(write_storyteller(tmp_path / "e", heads="0"))
    broken = write_public(tmp_path / "f", write_storyteller(tmp_path / "g")) / PUBLIC
    broken.write_bytes(broken.read_bytes()[:28] + struct.pack("<f", math.nan) + broken.read_bytes()[32:])
    with pytest.raises(UserError, match=r"embedding .* not finite"):
        storyteller_in(broken.parent)
    cut = write_storyteller(tmp_path / "d")
    (cut / TOKENIZER).write_bytes((cut / TOKENIZER).read_bytes()[:-1])
    with pytest.raises(UserError, match="cut short"):
        storyteller_in(cut)
