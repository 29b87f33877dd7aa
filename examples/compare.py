"""Compare two methods: the same tokens, network and steps, then their texts under the same judge, with intervals.

The story world's judge is exact; `judge_from` also takes a model of the hub or one of your own (docs/judges.md). It
needs two minutes on two CPU cores; TSDFM_EXAMPLE_STEPS sets the steps of each training. More names in METHODS compare
more methods: `tsdfm train` lists them.
"""

import os
from pathlib import Path

import tsdfm
from tsdfm.corpus.run import run as make_corpus
from tsdfm.corpus.settings import CorpusSettings
from tsdfm.judges.load import judge_from
from tsdfm.methods import method
from tsdfm.metrics.perplexity import judge_scores
from tsdfm.settings import build
from tsdfm.tokens.run import run as make_tokens
from tsdfm.tokens.settings import TokensSettings

METHODS = ("dfm", "mdlm")


def main(steps: int = 300, out: Path = Path("runs/examples/compare")) -> None:
    corpus = make_corpus(CorpusSettings(name="world:small", limit=4000, valid=0.05, out=out / "corpus"))
    tokens = make_tokens(
        TokensSettings(corpus=corpus, vocab_size=1024, length=36, layout="document", out=out / "tokens")
    )
    judge = judge_from("world:small")
    common = {
        "tokens": tokens,
        "net": {"preset": "tiny", "heads": 8, "dropout": 0.0, "positions": 36},
        "loop": {"steps": steps, "batch": 64, "log_every": 100, "eval_every": 0},
        "optim": {"lr": 2e-3, "warmup": 50, "floor": 0.05, "ema": 0.99},
        "eval_rows": 32,
        "resume": True,
    }
    for name in METHODS:
        run = method(name).train(build(method(name).settings, {**common, "out": out / name}))
        for passes in (4, 16):
            made = tsdfm.load(run).sample(n=64, steps=passes, seed=1)
            found = judge_scores(judge.score(made.texts)).ppl_geometric
            print(f"{name:5} {passes:3} passes: perplexity {found.value:.2f} [{found.low:.2f}, {found.high:.2f}]")


if __name__ == "__main__":
    main(steps=int(os.environ.get("TSDFM_EXAMPLE_STEPS", 300)))
