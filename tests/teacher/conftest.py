"""One small world of stories, as tokens, for all tests of the teacher."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tsdfm.corpus.run import run as make_corpus
    from tsdfm.corpus.settings import CorpusSettings
    from tsdfm.tokens.run import run as make_tokens
    from tsdfm.tokens.settings import TokensSettings

    home = tmp_path_factory.mktemp("stories")
    corpus = CorpusSettings(out=home / "corpus", name="world:small", limit=300, valid=0.1)
    made = make_corpus(corpus)
    settings = TokensSettings(
        corpus=made, out=home / "tokens", vocab_size=380, length=56, layout="document", workers=1, train_documents=300
    )
    return make_tokens(settings)
