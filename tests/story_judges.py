"""Small in-house judges of the stories, and rows for them to read."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from tsdfm.store.manifest import read_manifest
from tsdfm.tokens.rows import TokenRows


def story_rows(tokens: Path, n: int = 6) -> Tensor:
    return torch.from_numpy(TokenRows(tokens, "train").take(range(n)).astype("int64"))


def judge_run(tokens: Path, out: Path, steps: int = 40) -> Path:
    from tsdfm.judges.settings import JudgeLoop, JudgeOptim, JudgeTrainSettings
    from tsdfm.judges.train import run
    from tsdfm.nn.settings import NetSettings

    loop = JudgeLoop(steps=steps, batch=32, device="cpu", eval_every=0, save_every=0)
    net = NetSettings(width=48, depth=2, heads=2)  # with dropout, which q must not have
    return run(
        JudgeTrainSettings(tokens=tokens, out=out, net=net, loop=loop, optim=JudgeOptim(lr=5e-3, warmup=5, ema=0.9))
    )


def bytes_judge(tokens: Path, out: Path) -> Path:
    """A judge that reads bytes."""
    from tsdfm.tokens.run import run as make_tokens
    from tsdfm.tokens.settings import TokensSettings

    corpus = Path(read_manifest(tokens)["inputs"]["corpus"]["path"])
    settings = TokensSettings(
        corpus=corpus, out=out / "bytes", tokenizer="byte", length=256, layout="document", workers=1
    )
    return judge_run(make_tokens(settings), out / "judge", steps=3)
