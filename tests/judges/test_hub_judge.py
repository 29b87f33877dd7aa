"""transformers models as judges, held to transformers' own loss."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from local_hub import nobody, online, serving
from tsdfm.errors import UserError
from tsdfm.judges import Judge, judge_from
from tsdfm.judges.causal import CausalJudge

transformers = pytest.importorskip("transformers")


def load(folder: Path, **more: Any) -> CausalJudge:
    made = judge_from(str(folder), "cpu", **more)
    assert isinstance(made, CausalJudge)
    assert isinstance(made, Judge)
    return made


def own_loss(folder: Path, text: str, start: bool) -> tuple[float, int]:
    """Σ −log p by transformers' loss, and how many tokens it is over."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    x = torch.tensor([[tokenizer.bos_token_id, *ids] if start else ids])
    with torch.no_grad():
        return model(x, labels=x).loss.item() * (x.shape[1] - 1), x.shape[1] - 1


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_scores_are_transformers_own_loss(kind: str, gpt2: Path, llama: Path, word_texts: list[str]) -> None:
    """With an end-of-text to start from every token is scored; without one, all but the first."""
    folder = {"gpt2": gpt2, "llama": llama}[kind]
    made = load(folder)
    assert (made.start is not None) == (kind == "gpt2")
    short = [text for text in word_texts if 2 <= len(made.reader.encode([text])[0].ids) <= 30]
    assert len(short) >= 4
    for text, score in zip(short, made.score(short), strict=True):
        nats, count = own_loss(folder, text, made.start is not None)
        assert score.tokens == count
        assert score.nll == pytest.approx(nats, abs=1e-3)
        assert score.characters == len(text)
        assert 0 <= score.hits <= count


def test_neither_batch_nor_order_matters(gpt2: Path, word_texts: list[str]) -> None:
    one, many = load(gpt2, batch=1).score(word_texts), load(gpt2).score(word_texts[::-1])[::-1]
    for a, b in zip(one, many, strict=True):
        assert a.nll == pytest.approx(b.nll, rel=1e-5)
        assert (a.tokens, a.characters, a.hits) == (b.tokens, b.characters, b.hits)


def test_hits_are_the_likeliest_tokens(gpt2: Path) -> None:
    """A text the judge writes greedily is all hits (if it reads back as the same tokens)."""
    made = load(gpt2)
    reader: Any = made.reader
    ids = [made.start]
    for _ in range(12):
        ids.append(int(reader.logits(torch.tensor([ids]))[0, -1].argmax()))
    text = reader.tokenizer.decode(ids[1:])
    again = reader.encode([text])[0].ids
    (score,) = made.score([text])
    expected = sum(
        int(reader.logits(torch.tensor([[made.start, *again[:i]]]))[0, -1].argmax()) == token
        for i, token in enumerate(again)
    )
    assert score.hits == expected


def test_a_text_longer_than_the_context_goes_through_windows(gpt2: Path, word_texts: list[str]) -> None:
    made = load(gpt2)
    text = " ".join(word_texts * 3)
    ids = [made.start, *made.reader.encode([text])[0].ids]
    assert len(ids) > 2 * made.context == 64
    nats, begin, end, scored = 0.0, 0, 32, 1
    while scored < len(ids):  # half a context at a time, by hand
        window = ids[begin:end]
        logp = made.reader.logits(torch.tensor([window])).log_softmax(-1)[0]
        for place in range(scored - begin, len(window)):
            nats -= float(logp[place - 1, window[place]])
        scored, end = end, min(end + 16, len(ids))
        begin = end - 32
    (score,) = made.score([text])
    assert score.tokens == len(ids) - 1
    assert score.nll == pytest.approx(nats, rel=1e-5)


def test_a_prefix_is_read_and_not_scored(gpt2: Path, word_texts: list[str]) -> None:
    """The border may fall inside a token: that token counts as the continuation's."""
    made, text = load(gpt2), word_texts[3]
    ids, ends = (lambda e: (e.ids, e.ends))(made.reader.encode([text])[0])
    logp = made.reader.logits(torch.tensor([[made.start, *ids]])).log_softmax(-1)[0]
    costs = [-float(logp[i, token]) for i, token in enumerate(ids)]
    for cut in (0, 1, ends[3], ends[3] + 1, len(text)):
        (score,) = made.score([text], prefixes=[text[:cut]])
        inside = sum(end <= cut for end in ends)
        assert score.tokens == len(ids) - inside
        assert score.characters == len(text) - cut
        assert score.nll == pytest.approx(math.fsum(costs[inside:]), rel=1e-5, abs=1e-6)
    with pytest.raises(UserError, match="does not begin with its prefix"):
        made.score([text], prefixes=["no"])
    with pytest.raises(UserError, match="2 prefixes for 1 texts"):
        made.score([text], prefixes=["", ""])


def test_empty_texts_have_empty_scores(gpt2: Path, llama: Path) -> None:
    for folder in (gpt2, llama):
        empty, full = load(folder).score(["", "the cat"])
        assert (empty.nll, empty.tokens, empty.characters, empty.hits) == (0.0, 0, 0, 0)
        assert full.tokens > 0
    assert load(gpt2).score([]) == []


def test_half_a_character_is_refused_in_one_line(gpt2: Path) -> None:
    with pytest.raises(UserError, match="surrogate"):
        load(gpt2).score(["a \ud800"])


def test_progress_reaches_the_end(gpt2: Path, word_texts: list[str]) -> None:
    seen: list[tuple[int, int]] = []
    load(gpt2, batch=2).score([*word_texts, ""], on_done=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(word_texts) + 1, len(word_texts) + 1)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert len(seen) >= 3


def test_the_fingerprint_is_of_the_weights(gpt2: Path, tmp_path: Path) -> None:
    made = load(gpt2)
    kind, name, digest = made.fingerprint.split(":")
    assert (kind, name, len(digest)) == ("hub", gpt2.name, 8)
    assert load(gpt2, precision="bf16").fingerprint == made.fingerprint
    assert (made.precision, load(gpt2, precision="bf16").precision) == ("fp32", "bf16")
    model = transformers.AutoModelForCausalLM.from_pretrained(gpt2)
    model.get_input_embeddings().weight.data[0, 0] += 1e-3
    other = tmp_path / gpt2.name
    model.save_pretrained(other)
    transformers.AutoTokenizer.from_pretrained(gpt2).save_pretrained(other)
    assert load(other).fingerprint.split(":")[:2] == [kind, name]
    assert load(other).fingerprint != made.fingerprint


def test_bf16_is_near_float32(gpt2: Path, word_texts: list[str]) -> None:
    exact, rough = load(gpt2).score(word_texts), load(gpt2, precision="bf16").score(word_texts)
    assert [s.tokens for s in exact] == [s.tokens for s in rough]
    assert sum(s.nll for s in rough) == pytest.approx(sum(s.nll for s in exact), rel=0.02)
    assert [s.nll for s in rough] != [s.nll for s in exact]


def test_features_are_pooled_hidden_states(gpt2: Path) -> None:
    made, texts = load(gpt2), ["the cat sat", "a dog", ""]
    reader: Any = made.reader
    found = made.features(texts)
    assert found.shape == (3, 32)
    ids = [made.start, *reader.encode(["the cat sat"])[0].ids]
    hidden = reader.model(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0]
    torch.testing.assert_close(found[0], hidden[1:].mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(made.features(texts, pool="last")[0], hidden[-1], rtol=1e-4, atol=1e-5)
    start = reader.model(torch.tensor([ids[:1]]), output_hidden_states=True).hidden_states[-1][0, 0]
    torch.testing.assert_close(found[2], start, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("hub:nobody/nothing", "could not load the judge nobody/nothing"),
        ("wrold:small", "no judge 'wrold:small': give world:NAME"),
        ("runs/a,runs/judge", "of several, each has a --judges of its own"),
        ("nowhere/x.gguf", "no file at nowhere"),
        ("gguf:nowhere", "no file at nowhere"),
    ],
)
def test_mistakes_are_told_in_one_line(spec: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as problem:
        judge_from(spec)
    assert "\n" not in str(problem.value)


def test_without_a_network_a_judge_that_is_not_here_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The client's own tries, a line each, took a minute."""
    online(monkeypatch, nobody(), tmp_path)
    with pytest.raises(UserError, match="not on this machine, and the hub cannot be reached: give a folder") as problem:
        judge_from("gpt2-large")
    assert "\n" not in str(problem.value)
    assert capfd.readouterr() == ("", "")


def test_a_judge_of_the_hub_is_fetched_once(gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({"somebody/tiny": gpt2}) as address:
        online(monkeypatch, address, tmp_path)
        fetched = judge_from("somebody/tiny", "cpu").score(["the cat sat"])
        with pytest.raises(UserError, match="could not load the judge somebody/none"):
            judge_from("somebody/none", "cpu")
    assert fetched == load(gpt2).score(["the cat sat"])
    assert judge_from("somebody/tiny", "cpu").score(["the cat sat"]) == fetched  # nobody serves it now
    next(tmp_path.rglob("model.safetensors")).unlink()
    with pytest.raises(UserError, match="could not load the judge somebody/tiny"):
        judge_from("somebody/tiny", "cpu")
    with serving({"somebody/tiny": gpt2}, again=address):
        assert judge_from("somebody/tiny", "cpu").score(["the cat sat"]) == fetched  # the rest of it


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="neither a judge run nor a transformers model"):
        judge_from(str(tmp_path))


def test_a_missing_extra_is_named(gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"needs transformers: pip install 'tsdfm\[judges\]'"):
        judge_from(str(gpt2))
