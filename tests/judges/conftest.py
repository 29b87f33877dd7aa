"""Small real judges: a transformers model of a few thousand weights, story tokens, and a trained in-house judge."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from judge_parts import WORDS, save_model, story_tokens, train_judge


@pytest.fixture(scope="session")
def word_texts() -> list[str]:
    """Texts of several lengths, one of them with characters of many bytes."""
    words = WORDS.split()
    return [" ".join(words[i : i + n]) for i, n in ((0, 3), (2, 9), (4, 5), (1, 20), (7, 1))] + ["naïve 猫 café sat"]


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers")
    return save_model(tmp_path_factory.mktemp("tiny-gpt2"), "gpt2")


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """No special token at all: the first token cannot be scored."""
    pytest.importorskip("transformers")
    return save_model(tmp_path_factory.mktemp("tiny-llama"), "llama")


@pytest.fixture(scope="session")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return story_tokens(tmp_path_factory.mktemp("documents"), "document")


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return story_tokens(tmp_path_factory.mktemp("packed"), "packed")


@pytest.fixture(scope="session")
def judge_run(documents: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_judge(documents, tmp_path_factory.mktemp("runs") / "judge")
