"""Train a model on a folder of texts, and let it write: corpus, tokens, training, sampling.

    python examples/train_on_a_folder.py my-texts

Without a folder it takes this repository's own pages. It needs a minute on two CPU cores, and what it writes after 150
steps is not yet English; TSDFM_EXAMPLE_STEPS sets the number of steps. Run again, it goes on from where it ended.
"""

import os
import sys
from pathlib import Path

import tsdfm
from tsdfm.corpus.run import run as make_corpus
from tsdfm.corpus.settings import CorpusSettings
from tsdfm.engine.settings import LoopSettings, OptimSettings
from tsdfm.methods import method
from tsdfm.methods.dfm import DFMSettings
from tsdfm.nn.settings import NetSettings
from tsdfm.tokens.run import run as make_tokens
from tsdfm.tokens.settings import TokensSettings

PAGES = Path(__file__).parents[1] / "docs"


def main(folder: Path, steps: int = 150, out: Path = Path("runs/examples/folder")) -> None:
    corpus = make_corpus(CorpusSettings(path=folder, cut="paragraphs", valid=0.05, out=out / "corpus"))
    tokens = make_tokens(TokensSettings(corpus=corpus, vocab_size=1024, length=64, out=out / "tokens"))
    run = method("dfm").train(
        DFMSettings(
            tokens=tokens,
            out=out / "model",
            net=NetSettings(preset="tiny"),
            loop=LoopSettings(steps=steps, batch=16, log_every=50, eval_every=0),
            optim=OptimSettings(lr=2e-3, warmup=20, ema=0.99),
            eval_rows=32,
            resume=True,
        )
    )
    made = tsdfm.load(run).sample(n=2, steps=32, seed=0, prefix="The teacher")
    print(*made.texts, sep="\n---\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PAGES, steps=int(os.environ.get("TSDFM_EXAMPLE_STEPS", 150)))
