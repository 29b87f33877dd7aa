"""One small world of stories with a teacher and a compass of each source, for all tests of the student stage."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from training import train as train_teacher
    from tsdfm.compass.run import run as train_compass
    from tsdfm.compass.settings import CompassLoop, CompassNet, CompassOptim, CompassSettings, NegativeSettings
    from tsdfm.corpus.run import run as make_corpus
    from tsdfm.corpus.settings import CorpusSettings
    from tsdfm.engine.settings import LoopSettings, OptimSettings
    from tsdfm.methods.dfm import DFMSettings
    from tsdfm.nn.settings import NetSettings
    from tsdfm.tokens.run import run as make_tokens
    from tsdfm.tokens.settings import TokensSettings

    home = tmp_path_factory.mktemp("students")
    make_corpus(CorpusSettings(out=home / "corpus", name="world:small", limit=400, valid=0.1))
    make_tokens(
        TokensSettings(
            corpus=home / "corpus", out=home / "tokens", vocab_size=400, length=48, layout="document", workers=1
        )
    )
    for source in ("uniform", "mask"):
        train_teacher(
            DFMSettings(
                tokens=home / "tokens",
                out=home / f"teacher-{source}",
                source=source,  # type: ignore[arg-type]
                eval_rows=16,
                eval_times=2,
                net=NetSettings(width=32, depth=2, heads=2, cond=16, dropout=0.0),
                loop=LoopSettings(steps=60, batch=16, device="cpu"),
                optim=OptimSettings(lr=5e-3, warmup=5, ema=0.9),
            )
        )
        train_compass(
            CompassSettings(
                tokens=home / "tokens",
                teacher=home / f"teacher-{source}",
                out=home / f"compass-{source}",
                negatives=3,
                lambda_reg=0.01,
                eval_rows=16,
                corrupt=NegativeSettings(levels=(0.125,)),
                net=CompassNet(width=32, depth=1, heads=2, cond=16),
                loop=CompassLoop(steps=20, batch=16, device="cpu", eval_every=0, save_every=0),
                optim=CompassOptim(lr=5e-3, warmup=5, ema=0.9),
            )
        )
    return home
