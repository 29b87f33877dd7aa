"""`tsdfm report neighbours`: methods beside each other at a few steps, on one footing.

The paper's few-step table (size, training tokens, perplexity and entropy) with the passes really made, and with four
columns that it has not: perplexity at the entropy of held-out text, perplexity over that of one reference curve at the
same entropy, MAUVE where a judge is a network and bigram entropy where none is, and seconds a text. A curve is a run's
sweep of the temperature: narrower text is likelier under any judge, so only figures of one entropy compare
(`metrics.matched`).
"""

from __future__ import annotations

from collections.abc import Sequence

from tsdfm.charts import figure
from tsdfm.errors import UserError
from tsdfm.metrics.mauve import FEWEST
from tsdfm.report.bench import held_out
from tsdfm.report.desk import Desk, size
from tsdfm.report.rows import Plain, Row
from tsdfm.report.runs import RunSet, TrainedRun
from tsdfm.report.settings import NeighboursSettings
from tsdfm.report.sweeps import Line, cell_row, frontier_charts, point_of, swept
from tsdfm.report.table import ENTROPY, METHOD, PPL, SOURCE, STEPS, VALID, Column, Table, judge_columns
from tsdfm.store.files import write_text
from tsdfm.tokens.rows import TokenRows

NATS, AT_OWN = Column("entropy_nats", "entropy (nats)", format=".2f"), Column("at_own", "ppl / reference")
REAL_NOTE = "ppl at real entropy: of a run's own sweep, where it has the entropy of held-out text, by the first judge"
AT_REAL = Column("at_real", "ppl at real entropy", format=".1f")
MAUVE, BIGRAMS = Column("mauve", "MAUVE", format=".3f"), Column("bigram_entropy_bits", "bigram entropy", format=".2f")
FIRST = [METHOD, SOURCE, Column("size", "parameters"), Column("tokens_seen", "tokens seen"), STEPS,
         Column("nfe", "NFE", format=".4g")]  # fmt: skip
LAST = [Column("seconds_a_text", "s a text", format=".3g"), Column("temperature", "T", format="g"),
        Column("top_p", "top-p", format="g")]  # fmt: skip
BOUNDS = [SOURCE, METHOD, Column("bound", "bound", "left"), Column("nats", "nats a token", format=".3f"),
          Column("bits", "bits a character", format=".3f")]  # fmt: skip

NEAR = 1.0  # bits around the entropy of held-out text, which the figure shows


def run(desk: Desk, settings: NeighboursSettings) -> Table:
    """Make the table and the figure."""
    chosen, at = reference_of(desk.runs, settings.reference), settings.steps[0]
    control, real = swept(desk, chosen, at, settings.temperatures), list[str]()
    if desk.runs.tokens is not None and desk.networks():
        real, _ = held_out(TokenRows(desk.runs.tokens, "valid"), desk.asked.samples)
    rows, points = list[Plain](), list[Row]()
    target = desk.real()
    for model in desk.runs.models:
        mine = [neighbour(desk, model, steps, control, real) for steps in settings.steps]
        if settings.curves:
            line = control if model is chosen else swept(desk, model, at, settings.temperatures)
            points += [row for row, _ in line.cells]
            mine[0]["at_real"] = line.at(target.entropy) if target else None
        rows += mine
    judged = [VALID if desk.asked.world else PPL, *judge_columns(desk.judge_names()[1:])]
    matched = [*([AT_REAL] if settings.curves else []), AT_OWN, MAUVE if len(real) >= FEWEST else BIGRAMS]
    table = desk.table("Methods at a few steps", [*FIRST, *judged, ENTROPY, NATS, *matched, *LAST])
    table.rows = [row for steps in settings.steps for row in rows if row["steps"] == steps]
    table.rows += [] if desk.asked.world else desk.quote.rows(steps=settings.steps)  # which have perplexities alone
    temperatures = ", ".join(f"{t:g}" for t in settings.temperatures)
    table.notes += [
        f"ppl / reference: over that of {control.label}, {chosen.source} source, {at} steps, at the same entropy, on "
        f"its sweep at temperatures {temperatures}; below 1 is better, outside: it has no text of that entropy",
        *([REAL_NOTE] if settings.curves else []),
        "NFE: network passes of a text, the mean where it is an outcome; tokens seen: of what it started from, and own",
    ]
    desk.add_target(table, entropy_nats=target.plain()["entropy_nats"] if target else None)
    table.about |= {"reference": control.label, "temperatures": list(settings.temperatures)}
    bounds(desk)
    if points:
        table.about["points"] = [point_of(row) for row in points]
        draw(desk, points, target, at)
    return table


def neighbour(desk: Desk, model: TrainedRun, steps: int, control: Line, real: Sequence[str]) -> Plain:
    """One method at one step count."""
    cell = desk.cell(model, steps)
    row, seen = cell_row(desk, model, cell, control=control), model.tokens_seen()
    row["at_own"] = "reference" if (model, steps) == (control.run, control.steps) else row["at_own"]
    return row | {
        "parameters": model.parameters(),
        "size": size(model.parameters()),
        "tokens": seen,
        "tokens_seen": " + ".join("?" if each is None else size(each) for each in seen),
        "seconds_a_text": row["seconds"] / len(cell.texts),
        "mauve": desk.mauve(cell.texts[: len(real)], real),
    }


def bounds(desk: Desk) -> None:
    """The table of bounds, those of one name together: bounds of different processes do not compare."""
    table = Table("neighbours-bounds", "Bounds of held-out text", BOUNDS)
    known = [model for model in desk.runs.models if not model.jump and model.bound()]
    for model in sorted(known, key=lambda model: model.bound_label):
        table.add(**desk.about(model), bound=model.bound_label, **model.bound())
    table.notes.append("of the last evaluation of each training; only those of one name compare")
    if table.rows:
        desk.finish(table, sampled=False, beside=True)


def reference_of(runs: RunSet, name: str) -> TrainedRun:
    """The run that is called so, or the first."""
    known = {word: model for model in reversed(runs.models) for word in (model.method, model.name, runs.label(model))}
    if name and name not in known:
        called = dict.fromkeys(runs.label(model) for model in runs.models)
        raise UserError(f"no run is called {name}: give --reference one of {', '.join(called)}")
    return known[name] if name else runs.models[0]


def draw(desk: Desk, points: Sequence[Row], real: Row | None, steps: int) -> None:
    """The figure: perplexity against entropy at one step count, a chart a source, a curve a method.

    Only a method's own jump has a curve, and only near the entropy of held-out text: the table has the rest.
    """
    own = [row for row in points if "@" not in row.method]
    shown = own if real is None else [row for row in own if abs(row.entropy - real.entropy) <= NEAR]
    charts = [chart for some in frontier_charts(shown, real, "entropy_bits").values() for chart in some]
    hint = "One curve a method, by its temperature; filled marks: temperature 1. At equal entropy, lower is better."
    write_text(desk.report / "neighbours.svg", figure([charts], f"Perplexity against entropy at {steps} passes", hint))
