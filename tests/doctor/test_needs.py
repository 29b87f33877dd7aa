"""What a recipe needs: the sizes of the tokens that its models learn, and what is not there."""

from pathlib import Path

import pytest

from tsdfm.corpus.run import run as make_corpus
from tsdfm.corpus.settings import CorpusSettings
from tsdfm.doctor.run import needs
from tsdfm.tokens.run import run as make_tokens
from tsdfm.tokens.settings import TokensSettings


def test_models_are_reckoned_by_the_tokens_that_they_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`gsm8k_small` has a teacher and a compass of plain text, whose rows are longer than those of the problems."""
    monkeypatch.chdir(tmp_path)
    found = needs("gsm8k_small")
    assert found["missing"] == "text: tokens says runs/text/tokens, and there is nothing"
    assert "memory, one device" not in found
    corpus = make_corpus(CorpusSettings(out=Path("corpus"), name="world:small", limit=60, valid=0.1))
    make_tokens(TokensSettings(corpus=corpus, tokenizer="byte", length=200, out=Path("runs/text/tokens"), workers=1))
    found = needs("gsm8k_small")
    assert "|V| = 257, length 200" in found["network"]
    assert found["tokens per step"] == f"{128 * 200:,}"
    assert found["compass, tokens per step"] == f"{64 * 8 * 200:,} (8 states a positive)"


def test_a_tokenizer_that_is_not_there_is_not_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "not reckoned" in needs("gsm8k_1b3")["network"]
    assert "missing" not in needs("sums_h200")
