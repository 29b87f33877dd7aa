"""`tsdfm report diversity`: how much completions of one midpoint differ.

From each of several sources the flow is solved to t_mid; from that shared state several completions go on to t = 1 with
random numbers of their own. Self-BLEU, the share of positions at which two completions differ, and the share that has
the most popular token are the paper's; distinct-2 of the completions is ours.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from tsdfm.report.cells import written
from tsdfm.report.desk import Desk
from tsdfm.report.metrics.diversity import position_difference, self_bleu, token_agreement
from tsdfm.report.metrics.intervals import mean_interval
from tsdfm.report.metrics.ngrams import NgramPool, entropy_bits
from tsdfm.report.paper import DIVERSITY, QUOTES, SCALE_UNJUDGED
from tsdfm.report.rows import COLLAPSE, Plain
from tsdfm.report.settings import DiversitySettings
from tsdfm.report.table import ENTROPY, METHOD, ORIGIN, SOURCE, STEPS, Column, Table
from tsdfm.report.walk import allocation, points_between, sources, walk
from tsdfm.samples.model import TextModel

FRESH = 1 << 32  # completions are numbered from here, so that they share no random number with the way to the midpoint
MEASURES = [
    Column("self_bleu", "self-BLEU", format=".3f"),
    Column("edit_distance", "edit distance", format=".3f"),
    Column("positions", "positions", format=".1f"),
    Column("agreement", "agreement", format=".3f"),
    Column("distinct_2", "distinct-2", format=".3f"),
]


def run(settings: DiversitySettings) -> Path:
    """Make the table; returns the path of its JSON."""
    desk = Desk("diversity", settings)
    columns = [SOURCE, METHOD, ORIGIN, STEPS, Column("t_mid", "t mid", format=".1f"), *MEASURES, ENTROPY]
    table = Table("diversity", "Midpoint diversity", columns, quote=QUOTES["diversity"])
    for model in desk.runs.pick(settings.method):
        made = desk.model(model)
        for steps, t_mid in ((steps, t) for steps in settings.steps for t in settings.times):
            found = diversity(completions(desk, made, steps, t_mid, settings), made.tokenizer.end_of_text)
            low = desk.runs.tokens is not None and found["entropy_bits"] < desk.real().entropy - COLLAPSE
            marks = ["entropy_bits", "self_bleu"] if low else []
            table.add(**desk.about(model), steps=steps, t_mid=t_mid, **found, collapsed=low, marks=marks)
            desk.say(f"{model.name}: {steps} steps, t = {t_mid:g}, self-BLEU {found['self_bleu']:.3f}")
    for steps, by_time in DIVERSITY.items():
        for t_mid, (bleu, distance, agree) in by_time.items() if steps in settings.steps else ():
            known = {"source": "uniform", "method": "ts-dfm", "origin": SCALE_UNJUDGED, "paper": True, "steps": steps}
            quoted = {"self_bleu": bleu, "edit_distance": distance, "agreement": agree, "positions": 1024 * distance}
            table.add(**known, t_mid=t_mid, **quoted)
    count = f"{settings.midpoints} midpoints, {settings.completions} completions each"
    table.notes.append(f"{count} (the paper: 48 and 10); edit distance is the share of positions at which two differ")
    table.about = {"samples": settings.midpoints * settings.completions}
    return desk.finish(table)


def completions(desk: Desk, made: TextModel, steps: int, t_mid: float, settings: DiversitySettings) -> Tensor:
    """Tokens [midpoints, completions, L] after the anchor."""
    before, after = allocation(steps, t_mid)
    jump, device, asked = made.jump(desk.asked.jump), made.velocity.device, desk.asked
    shared, noise = sources(made, torch.arange(settings.midpoints, device=device), asked.seed)
    how = {"temperature": asked.temperature, "top_p": asked.top_p}
    if before:
        shared = walk(made, shared, points_between(0.0, t_mid, before), jump, noise, **how)
    starts = shared.repeat_interleave(settings.completions, 0)
    parts = []
    for first in range(0, len(starts), made.batch_size()):
        part = starts[first : first + made.batch_size()].clone()
        own = torch.arange(first, first + len(part), device=device) + FRESH
        fresh = sources(made, own, asked.seed)[1]
        parts.append(walk(made, part, points_between(t_mid, 1.0, after), jump, fresh, **how).cpu())
    whole = torch.cat(parts)[:, made.velocity.spec.anchor :]
    return whole.view(settings.midpoints, settings.completions, -1)


def diversity(groups: Tensor, end: int) -> Plain:
    """The metrics of tokens [midpoints, completions, L], averaged over midpoints, with intervals over them."""
    values: dict[str, list[float]] = {"self_bleu": [], "edit_distance": [], "agreement": [], "distinct_2": []}
    entropies = []
    for group in groups:
        texts = [written(row, end) for row in group]
        values["self_bleu"].append(fmean(self_bleu([row.tolist() for row in texts])))
        values["edit_distance"].append(fmean(position_difference(group)))
        values["agreement"].append(fmean(token_agreement(group)))
        values["distinct_2"].append(NgramPool(texts, 2).distinct())
        entropies += entropy_bits(texts)
    out: Plain = {"entropy_bits": fmean(entropies)}
    for name, found in values.items():
        made = mean_interval(found)
        out |= {name: made.value, f"{name}_interval": made.interval}
    return {**out, "positions": out["edit_distance"] * groups.shape[-1]}
