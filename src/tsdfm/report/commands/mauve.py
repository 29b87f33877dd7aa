"""`tsdfm report mauve`: how near texts come to held-out text, as features of a judge see them.

Features are the mean of a judge's last hidden states over a text's tokens, for every judge that is a network. Rows of
held-out text are taken in pairs, spread over the split: one of each pair is what methods are compared with, the others
are themselves compared with those, which is the most that can be reached with so many texts, and more where documents
are longer than rows: see `nearness`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from tsdfm.errors import UserError
from tsdfm.judges.causal import CausalJudge
from tsdfm.report.desk import Desk, size
from tsdfm.report.measure import REAL, read_rows, spread
from tsdfm.report.metrics import cluster_count, mauve_interval
from tsdfm.report.runs import Run
from tsdfm.report.settings import MauveSettings
from tsdfm.report.table import Column, Table
from tsdfm.tokens.rows import TokenRows

FEWEST = 16  # texts for which MAUVE means anything at all


def run(settings: MauveSettings) -> Path:
    """Make the table; returns the path of its JSON."""
    desk = Desk("mauve", settings)
    judges = networks(desk)
    first, second = held_out(desk)
    count = len(first)
    wanted = {judge.fingerprint: judge.features(first) for judge in judges}
    table = Table("mauve", "MAUVE against held-out text", columns(judges))
    for model in desk.found.models:
        for steps in (settings.teacher_steps or settings.steps) if model.method == "teacher" else settings.steps:
            texts = desk.cell(model, steps).texts[:count]
            found = compared(judges, texts, wanted, settings, desk.measure.seed)
            table.add(**about(desk, model, steps), **found)
            desk.said.print(f"{model.name}: {steps} steps, MAUVE {found['mauve_text']}", highlight=False)
    table.add(source="", method=REAL, **compared(judges, second, wanted, settings, desk.measure.seed))
    clusters = settings.clusters or cluster_count(count)
    table.notes += notes_on(judges, count, clusters, settings)
    table.notes += nearness(TokenRows(desk.found.tokens_or_refuse(), "valid"), count)
    table.about = {"samples": count, "clusters": clusters, "judge_names": [judge.fingerprint for judge in judges]}
    return desk.finish(table)


def networks(desk: Desk) -> list[CausalJudge]:
    """The judges that have features."""
    found = [judge for judge in desk.bench.judges() if isinstance(judge, CausalJudge)]
    if not found:
        raise UserError("MAUVE needs the features of a network: give --judges (see docs/judges.md)")
    return found


def held_out(desk: Desk) -> tuple[list[str], list[str]]:
    """Two sets of held-out texts, as many in each as a method's, or half of all there are."""
    rows = TokenRows(desk.found.tokens_or_refuse(), "valid")
    count = min(desk.measure.samples, len(rows) // 2)
    if count < FEWEST:
        raise UserError(
            f"MAUVE of {count} texts says nothing: it needs {FEWEST} --samples and twice as many held-out rows"
        )
    picks = spread(len(rows), 2 * count)
    texts = read_rows(rows, picks, {}, desk.settings.device).texts
    return texts[::2], texts[1::2]


def nearness(rows: TokenRows, count: int) -> list[str]:
    """What must be known of the row of held-out text where rows are cut from longer documents.

    Halves of the split would have other documents, but also other kinds of them (a split is in the order of its
    corpus), and methods would be compared with half of what they learned to write. So pairs it is, and a word on them.
    """
    if rows.layout == "document":
        return []  # a row is a document of its own
    return [
        f"{REAL} may stand too high: its rows lie {len(rows) / (2 * count):.1f} rows from those it is compared with, "
        "and where both are of one document they share its words, which no new text can"
    ]


def compared(
    judges: list[CausalJudge], texts: list[str], wanted: dict[str, Tensor], settings: MauveSettings, seed: int
) -> dict[str, Any]:
    """The fields of a set of texts; those of the first judge also stand in the row."""
    found: dict[str, dict[str, Any]] = {}
    for judge in judges:
        features = judge.features(texts)
        value, low, high = mauve_interval(features, wanted[judge.fingerprint], settings.clusters, seed, settings.draws)
        found[judge.fingerprint] = {
            "mauve": value,
            "mauve_interval": [low, high],
            "mauve_text": f"{value:.3f} [{low:.3f}, {high:.3f}]",
        }
    out = dict(next(iter(found.values())))
    out |= {f"mauve {name}": one["mauve_text"] for name, one in list(found.items())[1:]}
    return {**out, "judges": found}


def columns(judges: list[CausalJudge]) -> list[Column]:
    """A column for each judge's features."""
    others = [Column(f"mauve {judge.fingerprint}", f"MAUVE, {judge.fingerprint}") for judge in judges[1:]]
    return [
        Column("source", "source", "left"),
        Column("method", "method", "left"),
        Column("origin", "from", "left"),
        Column("steps", "steps"),
        Column("mauve_text", f"MAUVE, {judges[0].fingerprint}"),
        *others,
    ]


def about(desk: Desk, model: Run, steps: int) -> dict[str, Any]:
    """The fields that say which texts a row is of."""
    origin = f"ours, {size(model.parameters())}"
    return {"source": model.source, "method": desk.label(model), "run": model.name, "steps": steps, "origin": origin}


def notes_on(judges: list[CausalJudge], count: int, clusters: int, settings: MauveSettings) -> list[str]:
    """What was compared, and how."""
    return [
        f"features: the mean over a text's tokens of the last hidden states of the judge, of length 1, cut to 90 % of "
        f"their variance; {clusters} clusters of {count} and {count} texts; scale 5",
        f"intervals: texts of both sets drawn again in the same clusters, centred; {settings.draws} draws",
        f"{REAL}: other held-out rows than those the methods are compared with; the most there is to reach",
        "MAUVE depends on features, clusters and the number of texts: compare within this table only",
    ]
