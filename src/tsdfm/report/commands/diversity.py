"""`tsdfm report diversity`: how much completions of one midpoint differ.

From each of several sources the flow is solved to t_mid; from that shared state several completions go on to t = 1 with
random numbers of their own. Self-BLEU, the share of positions at which two completions differ, and the share that has
the most popular token are the paper's; distinct-2 of the completions is ours.
"""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import fmean

import torch
from torch import Tensor

from tsdfm.engine.precision import autocast
from tsdfm.errors import UserError
from tsdfm.flow import RowNoise, reads_of, solve
from tsdfm.flow.jump import Remembers
from tsdfm.metrics.diversity import position_difference, self_bleu, token_agreement
from tsdfm.metrics.intervals import mean_interval
from tsdfm.metrics.ngrams import NgramPool, entropy_bits
from tsdfm.report.cells import written
from tsdfm.report.desk import Desk
from tsdfm.report.rows import COLLAPSE, Plain
from tsdfm.report.settings import DiversitySettings, MeasureSettings
from tsdfm.report.table import ENTROPY, METHOD, ORIGIN, SOURCE, STEPS, Column, Table
from tsdfm.samples.model import TextModel

FRESH = 1 << 32  # completions are numbered from here, so that they share no random number with the way to the midpoint
MEASURES = [
    Column("self_bleu", "self-BLEU", format=".3f"),
    Column("edit_distance", "edit distance", format=".3f"),
    Column("positions", "positions", format=".1f"),
    Column("agreement", "agreement", format=".3f"),
    Column("distinct_2", "distinct-2", format=".3f"),
]


def run(desk: Desk, settings: DiversitySettings) -> Table:
    """Make the table."""
    columns = [SOURCE, METHOD, ORIGIN, STEPS, Column("t_mid", "t mid", format=".1f"), *MEASURES, ENTROPY]
    table = desk.table("Midpoint diversity", columns)
    for model in desk.runs.pick(settings.method):
        made = desk.model(model)
        for steps, t_mid in ((steps, t) for steps in settings.steps for t in settings.times):
            found = diversity(completions(made, desk.asked, steps, t_mid, settings), made.tokenizer.end_of_text)
            real = desk.real()
            low = real is not None and found["entropy_bits"] < real.entropy - COLLAPSE
            marks = ["entropy_bits", "self_bleu"] if low else []
            table.add(**desk.about(model), steps=steps, t_mid=t_mid, **found, collapsed=low, marks=marks)
            desk.say(f"{model.name}: {steps} steps, t = {t_mid:g}, self-BLEU {found['self_bleu']:.3f}")
    quoted = desk.quote.rows(steps=settings.steps)
    table.rows += [{**row, "positions": 1024 * row["edit_distance"]} for row in quoted]
    count = f"{settings.midpoints} midpoints, {settings.completions} completions each"
    table.notes.append(f"{count} (the paper: 48 and 10); edit distance is the share of positions at which two differ")
    table.about = {"samples": settings.midpoints * settings.completions}
    return table


def allocation(steps: int, t_mid: float) -> tuple[int, int]:
    """The paper's split of a budget: max(1, ⌊S·t⌋) steps to the midpoint (none at t = 0), max(1, ⌊S·(1 − t)⌋) from it.

    >>> allocation(8, 0.3)
    (2, 5)
    """
    near = 1e-9  # 10 · 0.3 is 3
    before = max(1, math.floor(steps * t_mid + near)) if t_mid > 0 else 0
    return before, max(1, math.floor(steps * (1 - t_mid) + near))


def completions(
    made: TextModel, asked: MeasureSettings, steps: int, t_mid: float, settings: DiversitySettings
) -> Tensor:
    """Tokens [midpoints, completions, L] after the anchor."""
    before, after = allocation(steps, t_mid)
    shared, noise = sources(made, torch.arange(settings.midpoints, device=made.velocity.device), asked.seed)
    shared = walk(made, shared, 0.0, t_mid, before, noise, asked)
    parts, first = list[Tensor](), FRESH
    for part in torch.split(shared.repeat_interleave(settings.completions, 0), made.batch_size()):
        numbers = torch.arange(first, first := first + len(part), device=part.device)
        fresh = sources(made, numbers, asked.seed)[1]  # its numbers go on after those of a source
        parts.append(walk(made, part, t_mid, 1.0, after, fresh, asked).cpu())
    whole = torch.cat(parts)[:, made.velocity.spec.anchor :]
    return whole.view(settings.midpoints, settings.completions, -1)


def sources(made: TextModel, numbers: Tensor, seed: int) -> tuple[Tensor, RowNoise]:
    """Where texts of these numbers start [B, L], and their noise; the anchor is in its place."""
    spec, noise = made.velocity.spec, RowNoise(seed, numbers)
    x = made.velocity.source.draw((len(numbers), spec.length), noise, numbers.device, made.never_noise)
    x[:, : spec.anchor] = made.tokenizer.end_of_text
    return x, noise


@torch.no_grad()
def walk(
    made: TextModel, x: Tensor, start: float, end: float, steps: int, noise: RowNoise, asked: MeasureSettings
) -> Tensor:
    """States x [B, L] taken from `start` to `end` in equal steps, which the sampler does not do; the anchor stays."""
    jump = made.jump(asked.jump)
    if jump.final_pass or isinstance(jump, Remembers):
        raise UserError(
            f"a text cannot be taken up in its middle by jump {asked.jump}: use one that decides step by step"
        )
    if not steps:
        return x
    times = [*(start + (end - start) * k / steps for k in range(steps)), end]
    held = torch.arange(x.shape[1], device=x.device) < made.velocity.spec.anchor
    with autocast(made.bf16, made.velocity.device):
        return solve(
            made.velocity.reading(reads_of(jump)),
            x,
            tuple(pairwise(times)),
            jump,
            noise,
            given=held,
            given_tokens=x,
            temperature=asked.temperature,
            top_p=asked.top_p,
        ).tokens


def diversity(groups: Tensor, end: int) -> Plain:
    """The metrics of tokens [midpoints, completions, L], averaged over midpoints, with intervals over them."""
    each = [[written(row, end) for row in group] for group in groups]
    values = {
        "self_bleu": [fmean(self_bleu([row.tolist() for row in texts])) for texts in each],
        "edit_distance": [fmean(position_difference(group)) for group in groups],
        "agreement": [fmean(token_agreement(group)) for group in groups],
        "distinct_2": [NgramPool(texts, 2).distinct() for texts in each],
    }
    out: Plain = {"entropy_bits": fmean(bits for texts in each for bits in entropy_bits(texts))}
    for name, found in values.items():
        made = mean_interval(found)
        out |= {name: made.value, f"{name}_interval": made.interval}
    return {**out, "positions": out["edit_distance"] * groups.shape[-1]}
