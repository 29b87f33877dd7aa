"""The demo's recipe, made small enough for seconds."""

from __future__ import annotations

from pathlib import Path

from tsdfm.cli import main

SMALL = [
    "corpus.limit=400",
    "corpus.valid=0.1",
    "teacher.loop.steps=6",
    "teacher.loop.batch=8",
    "teacher.loop.log_every=2",
    "teacher.loop.eval_every=0",
    "teacher.loop.save_every=2",
    "teacher.eval_rows=8",
    "teacher.eval_times=2",
    "teacher.net.width=32",
    "teacher.net.depth=1",
    "teacher.net.heads=2",
    "source.mask.teacher.loop.steps=6",
    "compass.loop.steps=3",
    "compass.loop.batch=4",
    "compass.loop.eval_every=0",
    "compass.eval_rows=8",
    "compass.net.width=32",
    "compass.net.heads=2",
    "compass.net.depth=1",
    "validate.rows=4",
    "validate.times=3",
    "validate.pairs=16",
    "validate.candidate_rows=2",
    "student.loop.steps=3",
    "student.loop.batch=4",
    "student.loop.log_every=1",
    "student.eval_rows=4",
    "student.eval_times=2",
    *(f"{where}students.{name}.loop.steps=2" for where in ("", "source.mask.") for name in ("control", "ts-dfm")),
    "source.mask.student.loop.steps=3",
    "measure.steps=2,4",
    "measure.teacher_steps=2,4",
    "measure.samples=4",
    "report.trajectories=2",
]
FLAGS = [word for pair in SMALL for word in ("--set", pair)]


def pipeline(out: Path, *more: str) -> int:
    """Run the demo's recipe with these settings, and `more`, on top."""
    return main(["pipeline", "tiny_cpu", "--out", str(out), *FLAGS, *(w for pair in more for w in ("--set", pair))])
