"""The commands of `tsdfm report`: each makes one table, or a few that belong together, of runs."""

from __future__ import annotations

from typing import NamedTuple


class Made(NamedTuple):
    """A table: the function of `commands` that makes it of a desk, and what the command line and recipes say of it.

    One that is `judged` needs a judge of its texts; one that is not `modelled` is made of what training left.
    """

    run: str
    help: str
    example: str = "runs/demo"
    judged: bool = True
    modelled: bool = True


def settings_of(table: str) -> str:
    """The class of `report.settings` that a table's settings are of."""
    return f"{table.capitalize()}Settings"


TABLES = {
    "main": Made("by_steps:main", "perplexity and entropy of every method by steps"),
    "frontier": Made(
        "frontier:frontier",
        "perplexity against entropy, and at matched entropy",
        "runs/demo --steps 8 --control fs-dfm",
    ),
    "neighbours": Made(
        "neighbours:run",
        "methods beside each other at a few steps",
        "runs/mine runs/mine/mdlm@remdm-cap:0.1 --reference teacher",
    ),
    "threshold": Made("by_steps:threshold", "students by τ and by what they started from"),
    "candidates": Made("guided:candidates", "guided generation with K candidates", "runs/demo --k 1,2,5"),
    "policy": Made("guided:policy", "guided generation by each policy", "runs/demo --steps 8,16"),
    "refinement": Made("guided:refinement", "what the token phase replaces and the safeguard accepts", judged=False),
    "diversity": Made(
        "diversity:run", "how much completions of one midpoint differ", "runs/demo --midpoints 8", judged=False
    ),
    "compass": Made("compass:run", "the validation of each compass", judged=False, modelled=False),
    "overhead": Made("overhead:run", "the time of a training step of each student", judged=False, modelled=False),
    "prefix": Made("prefix:run", "continuations of held-out prefixes", "runs/demo --share 0.5"),
    "answers": Made(
        "answers:run",
        "problems solved with k answers, beside what chance gives",
        "runs/mine --file test.jsonl --n 32",
        judged=False,
    ),
    "scaling": Made("by_steps:scaling", "runs of several sizes", "runs/demo runs/larger"),
    "mauve": Made("mauve:run", "how near texts come to held-out text", "runs/mine --judges smollm2 --steps 8"),
}
"""By command; `tsdfm report main` takes `report.settings.MainSettings`, and so on. A recipe may ask for any of them."""
