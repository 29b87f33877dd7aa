"""`tsdfm judge train`: tokens → a run folder with an autoregressive model, kept by its held-out likelihood."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tsdfm.engine.distributed import join
from tsdfm.engine.rows import train_rows
from tsdfm.engine.task import Record
from tsdfm.judges.settings import JudgeTrainSettings
from tsdfm.judges.task import JudgeTask
from tsdfm.nn.causal import CausalSpec
from tsdfm.tokens.rows import TokenRows, valid_rows


def run(settings: JudgeTrainSettings) -> Path:
    """Train a judge and return its run folder."""
    rows = TokenRows(settings.tokens, "train")
    spec = spec_for(settings, rows)
    with join(settings.loop.device) as world:
        task = JudgeTask(settings, spec, valid_rows(settings.tokens))
        return train_rows(task, rows, settings, record_for(settings, spec), world)


def spec_for(settings: JudgeTrainSettings, rows: TokenRows) -> CausalSpec:
    """The network these settings ask for on these rows."""
    return CausalSpec(
        shape=settings.net.shape(),
        vocab=rows.vocab_size,
        tied=settings.tied,
        length=rows.length,
        anchor=rows.anchor,
        tokenizer=rows.fingerprint,
    )


def record_for(settings: JudgeTrainSettings, spec: CausalSpec) -> Record:
    """What the run's manifests say. `judge` rather than `model`: nobody may take it for a velocity network."""
    same = replace(spec, shape=replace(spec.shape, checkpoint=False))  # costs time, saves memory, changes no number
    return Record(
        stage="judge",
        settings=settings,
        inputs={"tokens": settings.tokens},
        extra={"judge": spec.plain()},
        then=("report", "measure", settings.out.parent, "--judges", settings.out),
        identity={"judge": same.plain()},
    )
