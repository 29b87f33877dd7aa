"""One small world of stories, as tokens, for the tests of all methods."""

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


@pytest.fixture(scope="session")
def teachers(tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of hardly trained teachers to distil from: `uniform` and `mask` by DFM, `mdlm`."""
    from tsdfm.engine.settings import LoopSettings, OptimSettings
    from tsdfm.methods.dfm import METHOD as DFM
    from tsdfm.methods.dfm import DFMSettings
    from tsdfm.methods.mdlm import METHOD as MDLM
    from tsdfm.methods.mdlm import MDLMSettings
    from tsdfm.nn.settings import NetSettings

    home = tmp_path_factory.mktemp("teachers")
    rest: dict[str, Any] = {
        "tokens": tokens,
        "eval_rows": 4,
        "eval_times": 1,
        "net": NetSettings(width=32, depth=2, heads=2, cond=16, dropout=0.0),
        "loop": LoopSettings(steps=20, batch=16, device="cpu"),
        "optim": OptimSettings(lr=5e-3, warmup=5, ema=0.8),
    }
    DFM.train(DFMSettings(out=home / "uniform", **rest))
    DFM.train(DFMSettings(out=home / "mask", source="mask", **rest))
    MDLM.train(MDLMSettings(out=home / "mdlm", **rest))
    return home
