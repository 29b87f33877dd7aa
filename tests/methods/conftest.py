"""One small world of stories, as tokens, for the tests of all methods, and small models of it."""

from pathlib import Path
from typing import Any

import pytest

from story_judges import judge_run
from training import many_step


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


@pytest.fixture(scope="session")
def compasses(
    masked_models: dict[str, Path], uniform_model: Path, tokens: Path, tmp_path_factory: Any
) -> dict[str, Path]:
    """A compass of each source."""
    from tsdfm.compass.run import run as train_compass
    from tsdfm.compass.settings import CompassLoop, CompassNet, CompassSettings

    home, found = tmp_path_factory.mktemp("compasses"), dict[str, Path]()
    for source, teacher in (("uniform", uniform_model), ("mask", masked_models["dfm"])):
        settings = CompassSettings(
            tokens=tokens,
            teacher=teacher,
            out=home / source,
            negatives=2,
            eval_rows=8,
            net=CompassNet(width=32, depth=1, heads=2, cond=16),
            loop=CompassLoop(steps=3, batch=8, device="cpu", eval_every=0, save_every=0),
        )
        found[source] = train_compass(settings)
    return found


@pytest.fixture(scope="session")
def teachers(
    masked_models: dict[str, Path],
    uniform_model: Path,
    compasses: dict[str, Path],
    tokens: Path,
    tmp_path_factory: Any,
) -> dict[str, Path]:
    """What a distiller of both sources may start from: `uniform` and `mask` by DFM, `mdlm`, and `duo`; compasses."""
    duo = many_step("duo", tokens, tmp_path_factory.mktemp("duo") / "duo", steps=10)
    many = {"uniform": uniform_model, "mask": masked_models["dfm"], "mdlm": masked_models["mdlm"], "duo": duo}
    return many | {f"compass-{source}": path for source, path in compasses.items()}


@pytest.fixture(scope="session")
def judge(tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return judge_run(tokens, tmp_path_factory.mktemp("judges") / "judge")
