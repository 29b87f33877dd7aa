"""A small world of everything tsdfm makes, to be damaged: text, tokens, models, a bundle, a report, trajectories."""

from __future__ import annotations

import contextlib
import io
import shutil
from pathlib import Path

from tsdfm.cli import main

RECIPE = """
[corpus]
path = "texts"
cut = "lines"
valid = 0.2
[tokens]
tokenizer = "byte"
length = 24
[models.teacher]
method = "dfm"
net = { width = 16, depth = 1, heads = 2 }
loop = { steps = 2, batch = 4, device = "cpu" }
optim.warmup = 1
eval_rows = 2
eval_times = 1
[measure]
steps = [2]
teacher_steps = [2]
samples = 2
world = "small"
device = "cpu"
[report]
tables = ["main"]
trajectories = 2
"""
NET = "--net.width 16 --net.depth 1 --net.heads 2 --net.cond 16"
LOOP = "--loop.steps 2 --loop.batch 4 --loop.device cpu --loop.save-every 1 --optim.warmup 1"
EVAL = "--eval-rows 2 --eval-times 1"
COMMANDS = (
    "corpus --path texts --cut lines --valid 0.2 --out corpus",
    "tokens --corpus corpus --out tokens --tokenizer byte --length 24 --shard-rows 16",
    f"teacher --tokens tokens --out teacher-uniform {NET} {LOOP} {EVAL}",
    "sample teacher-uniform --n 2 --steps 2 --save-trajectory way.json --out texts.jsonl --device cpu",
)
MORE = (
    "tokens --corpus corpus --out bpe --vocab-size 300 --length 24",
    f"compass --tokens tokens --teacher teacher-uniform --out compass-uniform {NET} {LOOP} --eval-rows 2 --negatives 2 "
    "--corrupt.mixture random_replace=1",
    "compass validate compass-uniform --rows 2 --times 2 --pairs 2 --candidate-rows 1",
    f"train fs-dfm --tokens tokens --init-from teacher-uniform --out fs-dfm-uniform {LOOP} {EVAL}",
    f"judge train --tokens tokens --out judge {NET} {LOOP} --eval-rows 2",
    "sample fs-dfm-uniform --n 2 --steps 2 --save-trajectory way.json --out texts.jsonl --compass compass-uniform "
    "--device cpu",
    "ship fs-dfm-uniform --teacher teacher-uniform --compass compass-uniform --name mine --out bundle",
    "judge score texts.jsonl --judge judge --out scores.json --device cpu",
    "report measure . --samples 2 --steps 2 --teacher-steps 2 --world small --device cpu",
    "report page .",
)


def copied(world: Path, place: Path) -> Path:
    """A fresh copy of a world, in the place of the last one."""
    shutil.rmtree(place, ignore_errors=True)
    return Path(shutil.copytree(world, place))


def make(home: Path, *, short: bool = False) -> Path:
    """Make it all in a new folder; if `short`, text, a teacher and what it wrote."""
    (home / "texts").mkdir(parents=True)
    lines = [f"Mia has {n} red balls. She meets Tom in the garden. She gives him one." for n in range(40)]
    (home / "texts" / "a.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (home / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    with contextlib.chdir(home):
        for command in COMMANDS if short else (*COMMANDS, *MORE):
            said = io.StringIO()
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                code = main(command.split())
            assert code == 0, (command, said.getvalue())
    return home
