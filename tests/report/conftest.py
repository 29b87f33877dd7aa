"""A small pipeline's folder for all tests of the report: a teacher, a compass and three students on stories."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def report_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from training import student_settings
    from training import train as train_student
    from training import train as train_teacher
    from tsdfm.compass.run import run as train_compass
    from tsdfm.compass.settings import (
        CompassLoop,
        CompassNet,
        CompassOptim,
        CompassSettings,
        NegativeSettings,
        ValidateSettings,
    )
    from tsdfm.compass.validate import validate
    from tsdfm.corpus.run import run as make_corpus
    from tsdfm.corpus.settings import CorpusSettings
    from tsdfm.distil.settings import NavigateSettings, StudentLoop, StudentOptim
    from tsdfm.engine.settings import LoopSettings, OptimSettings
    from tsdfm.methods.dfm import DFMSettings
    from tsdfm.nn.settings import NetSettings
    from tsdfm.tokens.run import run as make_tokens
    from tsdfm.tokens.settings import TokensSettings

    home = tmp_path_factory.mktemp("reports")
    make_corpus(CorpusSettings(out=home / "corpus", name="world:small", limit=360, valid=0.15))
    make_tokens(
        TokensSettings(
            corpus=home / "corpus", out=home / "tokens", vocab_size=400, length=48, layout="document", workers=1
        )
    )
    teacher, compass = home / "teacher-uniform", home / "compass-uniform"
    train_teacher(
        DFMSettings(
            tokens=home / "tokens",
            out=teacher,
            source="uniform",
            eval_rows=8,
            eval_times=2,
            net=NetSettings(width=32, depth=1, heads=2, cond=16, dropout=0.0),
            loop=LoopSettings(steps=60, batch=16, device="cpu", eval_every=0, save_every=0),
            optim=OptimSettings(lr=1e-2, warmup=5, ema=0.9),
        )
    )
    train_compass(
        CompassSettings(
            tokens=home / "tokens",
            teacher=teacher,
            out=compass,
            negatives=3,
            lambda_reg=0.01,
            eval_rows=8,
            corrupt=NegativeSettings(levels=(0.125,)),
            net=CompassNet(width=32, depth=1, heads=2, cond=16),
            loop=CompassLoop(steps=10, batch=8, device="cpu", eval_every=0, save_every=0),
            optim=CompassOptim(lr=5e-3, warmup=5, ema=0.9),
        )
    )
    validate(ValidateSettings(compass=compass, rows=4, times=3, pairs=8, candidate_rows=2))
    students = {
        "fs-dfm": {"init_from": teacher},
        "control": {"init_from": home / "fs-dfm-uniform", "name": "control"},
        "ts-dfm": {
            "init_from": home / "fs-dfm-uniform",
            "policy": "sequence-to-token",
            "compass": compass,
            "navigate": NavigateSettings(k=2, tau=0.1),
        },
    }
    for name, given in students.items():
        train_student(
            student_settings(
                tokens=home / "tokens",
                out=home / f"{name}-uniform",
                levels="uniform",
                share=0.5,
                fresh="fit",
                eval_rows=8,
                eval_times=2,
                probe_every=0,
                loop=StudentLoop(steps=6, batch=4, device="cpu", log_every=2, eval_every=0, save_every=0),
                optim=StudentOptim(lr=1e-3, warmup=2, ema=0.9),
                **given,  # type: ignore[arg-type]
            )
        )
    return home


@pytest.fixture(scope="session")
def own_judge(report_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small autoregressive network on the same tokens."""
    from tsdfm.cli import main

    out = tmp_path_factory.mktemp("judge") / "run"
    words = ["--tokens", str(report_home / "tokens"), "--out", str(out), "--net.width", "16", "--net.depth", "1"]
    words += ["--net.heads", "2", "--loop.steps", "3", "--loop.batch", "8", "--loop.device", "cpu"]
    assert main(["judge", "train", *words]) == 0
    return out
