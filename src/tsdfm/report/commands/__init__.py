"""The commands of `tsdfm report`: each makes one table, or a few that belong together, of runs."""

from __future__ import annotations

from typing import NamedTuple


class Made(NamedTuple):
    """A table: its settings, the function that makes it, and what the command line and recipes say of it."""

    settings: str
    run: str
    help: str
    example: str
    judged: bool = True


TABLES = {
    "main": Made(
        "MainSettings", "commands.by_steps:main", "perplexity and entropy of every method by steps", "runs/demo"
    ),
    "frontier": Made(
        "FrontierSettings",
        "commands.frontier:frontier",
        "perplexity against entropy, and at matched entropy",
        "runs/demo --steps 8 --control fs-dfm",
    ),
    "neighbours": Made(
        "NeighboursSettings",
        "commands.neighbours:run",
        "methods beside each other at a few steps",
        "runs/mine runs/mine/mdlm@remdm-cap:0.1 --reference teacher",
    ),
    "threshold": Made(
        "ThresholdSettings", "commands.by_steps:threshold", "students by τ and by what they started from", "runs/demo"
    ),
    "candidates": Made(
        "CandidatesSettings", "commands.guided:candidates", "guided generation with K candidates", "runs/demo --k 1,2,5"
    ),
    "policy": Made(
        "PolicySettings", "commands.guided:policy", "guided generation by each policy", "runs/demo --steps 8,16"
    ),
    "refinement": Made(
        "RefinementSettings",
        "commands.guided:refinement",
        "what the token phase replaces and the safeguard accepts",
        "runs/demo",
        judged=False,
    ),
    "diversity": Made(
        "DiversitySettings",
        "commands.diversity:run",
        "how much completions of one midpoint differ",
        "runs/demo --midpoints 8",
        judged=False,
    ),
    "compass": Made(
        "CompassTableSettings", "commands.compass:run", "the validation of each compass", "runs/demo", judged=False
    ),
    "overhead": Made(
        "OverheadSettings",
        "commands.overhead:run",
        "the time of a training step of each student",
        "runs/demo",
        judged=False,
    ),
    "prefix": Made(
        "PrefixSettings", "commands.prefix:run", "continuations of held-out prefixes", "runs/demo --share 0.5"
    ),
    "answers": Made(
        "AnswersSettings",
        "commands.answers:run",
        "problems solved with k answers, beside what chance gives",
        "runs/mine --file test.jsonl --n 32",
        judged=False,
    ),
    "scaling": Made("ScalingSettings", "commands.by_steps:scaling", "runs of several sizes", "runs/demo runs/larger"),
    "mauve": Made(
        "MauveSettings",
        "commands.mauve:run",
        "how near texts come to held-out text",
        "runs/mine --judges smollm2 --steps 8",
    ),
}
"""Of `tsdfm.report`: the classes of `settings`, and functions of one. A recipe may ask for any of them."""
