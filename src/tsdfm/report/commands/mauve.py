"""`tsdfm report mauve`: how near texts come to held-out text, as features of a judge see them.

Features are the mean of a judge's last hidden states over a text's tokens, for every judge that is a network. Rows of
held-out text are taken in pairs, spread over the split: one of each pair is what methods are compared with, the others
are themselves compared with those, which is the most that can be reached with so many texts, and more where documents
are longer than rows: see `nearness`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tsdfm.errors import UserError
from tsdfm.judges.causal import CausalJudge
from tsdfm.metrics.mauve import FEWEST, cluster_count, mauve_interval
from tsdfm.report.bench import features_of, held_out
from tsdfm.report.desk import Desk
from tsdfm.report.rows import REAL, Plain
from tsdfm.report.settings import MauveSettings
from tsdfm.report.table import METHOD, ORIGIN, SOURCE, STEPS, Column, Table
from tsdfm.tokens.rows import TokenRows


def run(desk: Desk, settings: MauveSettings) -> Table:
    """Make the table."""
    judges = desk.networks()
    if not judges:
        raise UserError("MAUVE needs the features of a network: give --judges (see docs/judges.md)")
    rows = TokenRows(desk.runs.tokens_or_refuse(), "valid")
    first, second = held_out(rows, desk.asked.samples)
    if len(first) < FEWEST:
        raise UserError(
            f"MAUVE of {len(first)} texts says nothing: it needs {FEWEST} --samples and twice as many held-out rows"
        )
    count, names = len(first), [judge.fingerprint for judge in judges]
    columns = [Column("mauve_text", f"MAUVE, {names[0]}"), *(Column(f"mauve {n}", f"MAUVE, {n}") for n in names[1:])]
    table = desk.table("MAUVE against held-out text", [SOURCE, METHOD, ORIGIN, STEPS, *columns])
    for model in desk.runs.models:
        for steps in settings.steps_of(model):
            found = compared(judges, desk.cell(model, steps).texts[:count], first, settings, desk.asked.seed)
            table.add(**desk.about(model), steps=steps, **found)
            desk.say(f"{model.name}: {steps} steps, MAUVE {found['mauve_text']}")
    table.add(source="", method=REAL, **compared(judges, second, first, settings, desk.asked.seed))
    clusters = settings.clusters or cluster_count(count)
    table.notes += [
        f"features: the mean over a text's tokens of the last hidden states of the judge, of length 1, cut to 90 % of "
        f"their variance; {clusters} clusters of {count} and {count} texts; scale 5",
        f"intervals: texts of both sets drawn again in the same clusters, centred; {settings.draws} draws",
        f"{REAL}: other held-out rows than those the methods are compared with; the most there is to reach",
        "MAUVE depends on features, clusters and the number of texts: compare within this table only",
        *nearness(rows, count),
    ]
    table.about = {"samples": count, "clusters": clusters, "judge_names": names}
    return table


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
    judges: Sequence[CausalJudge], texts: Sequence[str], wanted: Sequence[str], settings: MauveSettings, seed: int
) -> Plain:
    """The fields of a set of texts; those of the first judge also stand in the row."""
    found: dict[str, Plain] = {}
    for judge in judges:
        mine, theirs = (features_of(judge, tuple(each)) for each in (texts, wanted))
        value, low, high = mauve_interval(mine, theirs, settings.clusters, seed, settings.draws)
        text = f"{value:.3f} [{low:.3f}, {high:.3f}]"
        found[judge.fingerprint] = {"mauve": value, "mauve_interval": [low, high], "mauve_text": text}
    out = dict(next(iter(found.values())))
    out |= {f"mauve {name}": one["mauve_text"] for name, one in list(found.items())[1:]}
    return {**out, "judges": found}
