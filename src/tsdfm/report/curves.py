"""The curves of several frontiers, one of each seed: their mean, and each seed's ratio to the control at equal entropy.

A point of the mean curve is that of a method at a temperature: the mean entropy, and exp of the mean log-perplexity.
Between the points of a seed's own curve log-perplexity is linear in entropy (`metrics.matched`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from tsdfm.charts import figure
from tsdfm.errors import UserError
from tsdfm.report.rows import Plain
from tsdfm.report.settings import SeedsSettings
from tsdfm.report.sweeps import ENTROPIES, HINT, Spot, charts_of, ppl_at
from tsdfm.report.table import METHOD, SOURCE, STEPS, Column, Table
from tsdfm.report.unigram import SUFFIX
from tsdfm.store.files import MEND
from tsdfm.store.schema import Count, checked

Key = tuple[str, int, str, float]
LARGE = (760, 440)  # of a chart by itself
ABSENT = "–"


class PointFile(TypedDict):
    """A point of a curve, as `tsdfm report frontier` writes it."""

    source: str
    steps: Count
    method: str
    temperature: float
    entropy_bits: float
    bigram_entropy_bits: float
    ppl: NotRequired[float | None]
    ppl_geometric: NotRequired[float | None]


class FrontierFile(TypedDict):
    """What is read of a frontier besides its table."""

    points: list[PointFile]
    control: str
    judge: str
    target: NotRequired[dict[str, Any] | None]


def frontiers_in(files: Sequence[Path], plain: Sequence[Plain], settings: SeedsSettings) -> list[FrontierFile]:
    """The frontiers among tables: all of them, which must be comparable, or none."""
    have = ["points" in one and "control" in one for one in plain]
    if not all(have):
        if any(have) or settings.steps or settings.within is not None or settings.definition != "paper":
            raise UserError(
                f"{files[have.index(False)]} has no curves: steps, within and definition are for several frontiers"
            )
        return []
    found = [checked(one, FrontierFile, file, MEND) for one, file in zip(plain, files, strict=True)]
    for one, file in zip(found, files, strict=True):
        if (one["judge"], one["control"]) != (found[0]["judge"], found[0]["control"]):
            raise UserError(f"{file} and {files[0]} have different judges or controls: give one table of several seeds")
    known = {point["steps"] for point in found[0]["points"]}
    if missing := set(settings.steps) - known:
        raise UserError(f"no frontier has {min(missing)} steps: they have {', '.join(map(str, sorted(known)))}")
    if settings.within is not None and not found[0].get("target"):
        raise UserError(f"{files[0]} knows no held-out text: leave within out")
    return found


def ppl_of(settings: SeedsSettings) -> str:
    """The field of a point that has its perplexity."""
    return "ppl_geometric" if settings.definition == "geometric" else "ppl"


def key_of(point: PointFile) -> Key:
    """What a point is of."""
    return point["source"], point["steps"], point["method"], float(point["temperature"])


def mean_spots(frontiers: Sequence[FrontierFile], entropy: str, ppl: str) -> list[Spot]:
    """The points that every seed has, as points of the mean curves."""
    seeds = [{key_of(point): point for point in one["points"] if point.get(ppl)} for one in frontiers]
    found = []
    for key in seeds[0]:
        same: list[Any] = [points[key] for points in seeds if key in points]
        if len(same) == len(seeds):
            x = sum(point[entropy] for point in same) / len(same)
            found.append(Spot(*key, x, math.exp(sum(math.log(point[ppl]) for point in same) / len(same))))
    return found


def curve_of(frontier: FrontierFile, of: Key, entropy: str, ppl: str) -> list[tuple[float, float]]:
    """The points (entropy, perplexity) of a method in a table."""
    mine: list[Any] = [point for point in frontier["points"] if key_of(point)[:3] == of[:3] and point.get(ppl)]
    return [(point[entropy], point[ppl]) for point in mine]


def ratios(frontiers: Sequence[FrontierFile], settings: SeedsSettings) -> Table:
    """Each method at its own entropy at T = 1 beside the control, and the control with a unigram bias, seed by seed."""
    ppl, first = ppl_of(settings), frontiers[0]
    points = list(dict.fromkeys(key for one in frontiers for p in one["points"] if (key := key_of(p))[3] == 1.0))
    names = [first["control"], *dict.fromkeys(m for _, _, m, _ in points if m.endswith(SUFFIX))]
    by = [(entropy, name, f"ppl / {name}, equal {words}") for name in names
          for entropy, words in zip(ENTROPIES, ("bits", "bigrams"), strict=True)]  # fmt: skip
    columns = [SOURCE, METHOD, STEPS, Column("ppl", "ppl, T = 1"), Column("entropy_bits", "entropy, T = 1")]
    columns += [Column(f"{entropy} {name}", title) for entropy, name, title in by]
    table = Table("frontier-seeds", "Perplexity at matched entropy, seed by seed", columns)
    for key in points:
        own: list[Any] = [next((p for p in f["points"] if key_of(p) == key and p.get(ppl)), None) for f in frontiers]
        row: Plain = dict(zip(("source", "steps", "method"), key, strict=False))
        row["ppl"] = told([point and rounded(point[ppl]) for point in own])
        row["entropy_bits"] = told([point and f"{point['entropy_bits']:.2f}" for point in own])
        for entropy, name, _ in by if key[2] != names[0] else ():
            found = list[str | None]()
            for one, point in zip(frontiers, own, strict=True):
                curve = curve_of(one, (*key[:2], name, 1.0), entropy, ppl)
                at = ppl_at(curve, point[entropy]) if point else None
                found.append(f"{point[ppl] / at:.3f}" if at else "outside" if point and curve else None)
            row[f"{entropy} {name}"] = "" if name == key[2] else told(found)
        table.add(**row)
    table.notes += [
        "at a method's own entropy at T = 1; outside: the other has no text of that entropy; –: not in that table",
        f"perplexity of several texts: {'exp of their mean log' if ppl == 'ppl_geometric' else 'the mean of theirs'}",
    ]
    return table


def told(values: Sequence[str | None]) -> str:
    """The values of all seeds, in their order; one word where all are alike."""
    words = [value or ABSENT for value in values]
    return words[0] if words[0] in ("outside", ABSENT) and len(set(words)) == 1 else ", ".join(words)


def rounded(value: float) -> str:
    """Three digits, as in 5.46, 12.3 and 156."""
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def drawn(frontiers: Sequence[FrontierFile], settings: SeedsSettings) -> dict[str, str]:
    """The figures of the mean curves by their files: `frontier.svg` and `frontier-bigrams.svg`."""
    ppl, real = ppl_of(settings), frontiers[0].get("target") or {}
    middle, within = real.get("entropy_bits"), settings.within
    bits = {spot[:4]: spot.entropy for spot in mean_spots(frontiers, "entropy_bits", ppl)}
    kept = {key for key, at in bits.items() if not settings.steps or key[1] in settings.steps}
    if within is not None and middle is not None:
        kept = {key for key in kept if abs(bits[key] - middle) <= within}
    if not kept:
        raise UserError("no point that all seeds have is left to be drawn: raise within, or leave it out")
    texts = "geometric mean over texts" if ppl == "ppl_geometric" else "mean over texts"
    hint = f"{HINT} {texts.capitalize()}, mean of {len(frontiers)} seeds."
    hint += f" Within {within:g} bits of held-out text." if within is not None else ""
    out = {}
    for suffix, entropy in zip(("", "-bigrams"), ENTROPIES, strict=True):
        target = (real[entropy], real[ppl]) if real.get(entropy) and real.get(ppl) else None
        spots = mean_spots(frontiers, entropy, ppl)
        styles = {name: i for i, name in enumerate(dict.fromkeys(one.method for one in spots))}
        made = [*charts_of([one for one in spots if one[:4] in kept], target, entropy, styles).values()]
        if len(made) == 1 and len(made[0]) == 1:
            made = [[replace(made[0][0], size=LARGE)]]
        out[f"frontier{suffix}.svg"] = figure(made, f"Perplexity against {ENTROPIES[entropy]}", hint)
    return out
