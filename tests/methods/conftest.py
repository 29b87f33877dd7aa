"""One small world of stories, as tokens, for the tests of all methods."""

from pathlib import Path

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
