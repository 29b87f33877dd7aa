"""One small world of stories, as tokens, for the tests of all methods, and small models of it."""

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tsdfm.corpus.run import run as make_corpus
    from tsdfm.corpus.settings import CorpusSettings
    from tsdfm.tokens.run import run as make_tokens
    from tsdfm.tokens.settings import TokensSettings

    home = tmp_path_factory.mktemp("stories")
    made = make_corpus(CorpusSettings(out=home / "corpus", name="world:small", limit=200, valid=0.1))
    settings = TokensSettings(
        corpus=made, out=home / "tokens", vocab_size=380, length=40, layout="document", workers=1, train_documents=200
    )
    return make_tokens(settings)


def many_step(name: str, tokens: Path, out: Path, **given: Any) -> Path:
    """A small model of a many-step method, trained for as long as it takes to know a word from another."""
    from tsdfm.engine.settings import LoopSettings, OptimSettings
    from tsdfm.methods import method
    from tsdfm.nn.settings import NetSettings

    settings = method(name).settings(
        tokens=tokens,
        out=out,
        eval_rows=8,
        eval_times=2,
        net=NetSettings(width=32, depth=1, heads=2, cond=16, dropout=0.0),
        loop=LoopSettings(steps=30, batch=16, device="cpu", eval_every=0, save_every=0),
        optim=OptimSettings(lr=5e-3, warmup=5, ema=0.9),
        **given,
    )
    return method(name).train(settings)


@pytest.fixture(scope="session")
def masked_models(tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model of the mask source that is not told the time, and one that is."""
    home = tmp_path_factory.mktemp("masked")
    return {
        "mdlm": many_step("mdlm", tokens, home / "mdlm"),
        "dfm": many_step("dfm", tokens, home / "dfm", source="mask"),
    }


@pytest.fixture(scope="session")
def uniform_model(tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the uniform source."""
    return many_step("dfm", tokens, tmp_path_factory.mktemp("uniform") / "dfm")
