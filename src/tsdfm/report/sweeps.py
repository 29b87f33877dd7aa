"""Sweeps of the temperature, as every judge and both entropies see them, and the tables and figures of the frontier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tsdfm.charts import Axis, Chart, Point, Series, figure
from tsdfm.errors import UserError
from tsdfm.report.cells import Cell
from tsdfm.report.desk import Desk
from tsdfm.report.metrics.matched import Comparison, PooledEntropy, Sweep, compare, mean_entropy
from tsdfm.report.metrics.ngrams import entropy_bits
from tsdfm.report.rows import REAL, Plain, Row
from tsdfm.report.runs import TrainedRun
from tsdfm.report.settings import FrontierSettings
from tsdfm.report.table import METHOD, SOURCE, STEPS, Column, Table, write_text
from tsdfm.report.unigram import MORE, SUFFIX, Fit, counts_of, data_counts, fit

BY = ("", "bigram_")
"""What fields about an entropy begin with: that of the token histogram, and that of pooled bigrams."""
OWN = ("source", "steps", "nfe", "temperature", "samples", "collapsed", "checkpoint", "ppl", "ppl_interval")
KEPT = (*OWN, "ppl_corpus", "ppl_geometric", "entropy_bits", "entropy_interval", "entropy_nats", "bigram_entropy_bits",
        "valid", "valid_interval")  # fmt: skip
"""What is kept of a point."""
COLUMNS = [
    SOURCE,
    METHOD,
    STEPS,
    Column("ppl", "ppl, T = 1", format=".2f"),
    Column("entropy_bits", "entropy, T = 1", format=".2f"),
    Column("at_own", "ppl / control at that entropy"),
    Column("over", "mean over shared entropies"),
    Column("bigram_entropy_bits", "bigram entropy", format=".2f"),
    Column("bigram_at_own", "ppl / control at that"),
    Column("bigram_over", "mean over shared"),
]


@dataclass(frozen=True)
class SweptCell:
    """One cell: its row, and by judge and entropy its texts one by one."""

    row: Row
    sweeps: dict[tuple[str, str], Sweep]


@dataclass(frozen=True)
class Line:
    """A method's sweep at one step count; `fit` is the bias it was made with, if it was."""

    label: str
    method: str
    run: TrainedRun
    steps: int
    cells: Sequence[SweptCell]
    fit: Fit | None = None

    def sweeps(self, judge: str, by: str) -> list[Sweep]:
        """The cells under one judge (its fingerprint), by one entropy of `BY`."""
        return [seen.sweeps[judge, by] for seen in self.cells]

    def own(self) -> Row | None:
        """The row at T = 1."""
        return next((seen.row for seen in self.cells if seen.row.temperature == 1.0), None)

    def beside(self, lines: Sequence[Line], *methods: str) -> Line | None:
        """The line of the first of these methods that was swept at the same source and step count."""
        same = [x for x in lines if (x.run.source, x.steps) == (self.run.source, self.steps)]
        return next((x for method in methods for x in same if x.method == method), None)


def see(desk: Desk, cell: Cell, row: Row, *, temperature: float, geometric: bool = False) -> SweptCell:
    """A cell before all judges, text by text."""
    written = cell.rows()
    own = mean_entropy(torch.tensor(entropy_bits(written), dtype=torch.float64))
    pooled = PooledEntropy(written)
    found = {}
    for judge in desk.bench.judges():
        ppl = desk.bench.perplexities(cell, judge)
        for by, entropy in zip(BY, (own, pooled), strict=True):
            found[judge.fingerprint, by] = Sweep(temperature, ppl, geometric, entropy)
    return SweptCell(row, found)


def swept(
    desk: Desk,
    run: TrainedRun,
    steps: int,
    temperatures: Sequence[float],
    *,
    geometric: bool = False,
    fitted: Fit | None = None,
) -> Line:
    """Sample and judge a run at every temperature."""
    suffix = f" {SUFFIX}" if fitted else ""
    label, bias, cells = f"{desk.runs.label(run)}{suffix}", fitted.bias if fitted else None, []
    for temperature in temperatures:
        cell = desk.cell(run, steps, temperature=temperature, bias=bias)
        row = desk.row_of(run, cell, name=label)
        cells.append(see(desk, cell, row, temperature=temperature, geometric=geometric))
    return Line(label, f"{run.method}{suffix}", run, steps, cells, fitted)


def matched(mine: Line, control: Line, judge: str, *, draws: int, seed: int) -> Plain:
    """The ratios of a line to a control under one judge, by both entropies."""
    out: Plain = {}
    for by in BY:
        found = compare(mine.sweeps(judge, by), control.sweeps(judge, by), draws=draws, seed=seed)
        out |= {f"{by}{name}": value for name, value in shown(found).items()}
    return out


def shown(found: Comparison) -> Plain:
    """The numbers of a comparison, and as text."""
    return {
        "at_own": ratio_text(found.at_own_entropy, found.at_own_interval) or "outside",
        "over": ratio_text(found.over_overlap, found.over_interval) or "no overlap",
        "ratio_at_own_entropy": found.at_own_entropy,
        "ratio_at_own_interval": list(found.at_own_interval) if found.at_own_interval else None,
        "ratio_over_overlap": found.over_overlap,
        "ratio_over_interval": list(found.over_interval) if found.over_interval else None,
        "overlap": list(found.span) if found.span else None,
    }


def ratio_text(value: float | None, interval: tuple[float, float] | None) -> str | None:
    """`0.873 [0.81, 0.94]`."""
    if value is None:
        return None
    return f"{value:.3f}" + (f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else "")


def frontier(settings: FrontierSettings, *, beside: bool = False) -> Path:
    """The tables and figures of the frontier under every judge, the first shown unless it stands `beside` another one.

    Returns the path of the first one's JSON.
    """
    desk = Desk("frontier", settings, judged=True, modelled=True)
    if settings.unigram and all(run.method != settings.unigram for run in desk.runs.models):
        known = ", ".join(dict.fromkeys(run.method for run in desk.runs.models))
        raise UserError(f"no run is called {settings.unigram}: give --unigram one of {known}")
    lines, geometric = list[Line](), settings.definition == "geometric"
    for run in desk.runs.models:
        for steps in settings.steps:
            lines.append(swept(desk, run, steps, settings.temperatures, geometric=geometric))
            if run.method == settings.unigram:
                found = unigram_fit(desk, run, steps)
                lines.append(swept(desk, run, steps, settings.temperatures, geometric=geometric, fitted=found))
    rows = [row_for(desk, line, lines, settings) for line in lines]
    first, *others = desk.bench.judge_names()
    for number, judge in enumerate(others, 2):
        one_table(desk, lines, rows, judge, settings, number, True)
    names = other_names(lines, settings)
    if names:
        table = Table("frontier-against", "Perplexity at matched entropy, relative to other methods", COLUMNS[:3])
        table.columns = [*table.columns, *(Column(name, f"ppl / {name}") for name in names)]
        for row in rows:
            ratios = {name: one["at_own"] for name, one in row["judges"][first]["against"].items()}
            table.add(**{name: row[name] for name in ("source", "method", "steps")}, **ratios)
        table.notes.append("at a method's own entropy at T = 1; outside: the other has no text of that entropy")
        desk.finish(table, beside=True)
    return one_table(desk, lines, rows, first, settings, 1, beside)


def unigram_fit(desk: Desk, run: TrainedRun, steps: int) -> Fit:
    """The bias that gives a run's texts the training split's token frequencies."""
    vocab = desk.bench.model(run).velocity.spec.vocab
    data = data_counts(desk.runs.tokens_or_refuse(), desk.bench.cells.folder)

    def counts(bias: Tensor | None, seed: int) -> Tensor:
        return counts_of(desk.cell(run, steps, temperature=1.0, bias=bias, seed=seed, times=MORE), vocab)

    found = fit(data, counts, desk.measure.seed)
    off = " → ".join(f"{kl:.4f}" for kl in found.kl)
    desk.say(f"{run.name}: {steps} steps, unigram bias, KL to the data {off} bits")
    return found


def row_for(desk: Desk, line: Line, lines: Sequence[Line], settings: FrontierSettings) -> Plain:
    """A method at one step count; `judges` has its figures at T = 1 and its ratios under each judge."""
    own, control = line.own(), line.beside(lines, *controls(settings))
    row: Plain = {
        "source": line.run.source,
        "method": line.label,
        "run": line.run.name,
        "steps": line.steps,
        "marks": ["ppl", "entropy_bits"] if own is not None and own.collapsed else [],
        "control": control is line,
        "control_method": control.method if control is not None and control is not line else None,
        **({"unigram": line.fit.plain()} if line.fit else {}),
    }
    if own is not None:
        plain = own.plain()
        row |= {name: plain[name] for name in ("entropy_bits", "entropy_interval", "bigram_entropy_bits")}
    row["judges"] = {
        judge: figures_of(desk, line, control, lines, judge, settings) for judge in desk.bench.judge_names()
    }
    return row


def controls(settings: FrontierSettings) -> tuple[str, ...]:
    """The control that was asked for, and what stands in where there is no such run."""
    return settings.control, "fs-dfm", "teacher"


def figures_of(
    desk: Desk, line: Line, control: Line | None, lines: Sequence[Line], judge: str, settings: FrontierSettings
) -> Plain:
    """What one judge says of a line: its perplexity at T = 1, and the ratios to the control and to others."""
    own, out = line.own(), Plain()
    if own is not None:
        plain, ppl = own.under(judge).plain(), ppl_field(settings)
        out |= {"ppl": plain.get(ppl), "ppl_interval": plain.get(f"{ppl}_interval")}

    def against(other: Line) -> Plain:
        return matched(line, other, judge, draws=settings.draws, seed=desk.measure.seed)

    if control is line:
        out["at_own"] = "control"
    elif control is not None:
        out |= against(control)
    others = {name: line.beside(lines, name) for name in other_names(lines, settings)}
    out["against"] = {
        name: against(other)
        for name, other in others.items()
        if other is not None and other is not line and other is not control
    }
    return out


def ppl_field(settings: FrontierSettings) -> str:
    """The perplexity that the settings define."""
    return "ppl_geometric" if settings.definition == "geometric" else "ppl"


def other_names(lines: Sequence[Line], settings: FrontierSettings) -> list[str]:
    """The methods every line is also compared with, where they are: the biased control, and those asked for."""
    biased = [f"{settings.unigram} {SUFFIX}"] if settings.unigram else []
    known = {line.method for line in lines}
    return [name for name in dict.fromkeys((*biased, *settings.against)) if name in known and name != settings.control]


def one_table(
    desk: Desk,
    lines: Sequence[Line],
    rows: Sequence[Plain],
    judge: str,
    settings: FrontierSettings,
    number: int,
    beside: bool,
) -> Path:
    """The table, its JSON and its figures under one judge: `frontier`, `frontier-judge-2`, …"""
    name, title = "frontier", "Perplexity at matched entropy, relative to the control"
    if number > 1:
        name, title = f"frontier-judge-{number}", f"{title}, under {judge}"
    table = Table(name, title, COLUMNS, [{**row, **row["judges"][judge]} for row in rows])
    table.notes += notes_on(lines, settings)
    desk.add_target(table, judge if number > 1 else None)
    target = table.about.pop("target", None)
    if target and target["samples"] != desk.measure.samples:
        table.notes.append(f"held-out text is {target['samples']} texts only: a pool of fewer texts has less entropy")
    points = [(line, seen.row.under(judge).plain()) for line in lines for seen in line.cells]
    table.about |= {
        "points": [
            {"method": line.label, "run": line.run.name, **{n: row[n] for n in KEPT if n in row}}
            for line, row in points
        ],
        "target": {n: target.get(n) for n in (*KEPT, "method")} if target else None,
        "judge": judge,
        "control": settings.control,
        "definition": settings.definition,
        "temperatures": list(settings.temperatures),
    }
    path = desk.finish(table, beside=beside)
    real = Row.read(table.about["target"]) if target else None
    shown = [Row.read(point) for point in table.about["points"]]
    for suffix, entropy in (("", "entropy_bits"), ("-bigrams", "bigram_entropy_bits")):
        drawn = frontier_charts(shown, real, entropy, ppl_field(settings))
        by_source = [[chart for source, chart in drawn if source == each] for each in dict(drawn)]
        hint = "At equal entropy, lower is better. Filled marks: temperature 1."
        label = f"Perplexity against {ENTROPIES[entropy]}"
        write_text(desk.report / f"{name}{suffix}.svg", figure(by_source, label, hint))
    return path


ENTROPIES = {"entropy_bits": "entropy, bits", "bigram_entropy_bits": "bigram entropy, bits"}


def frontier_charts(
    points: Sequence[Row], real: Row | None, entropy: str, ppl: str = "ppl", style: dict[str, int] | None = None
) -> list[tuple[str, Chart]]:
    """Perplexity against an entropy: for each source and step count a chart, with a curve for each method."""
    out, methods = list[tuple[str, Chart]](), list(dict.fromkeys(row.label for row in points))
    styles = style or {name: i % 8 for i, name in enumerate(methods)}

    def place(row: Row) -> tuple[float, float] | None:
        found, known = getattr(row.text, entropy), getattr(row.scores, ppl)
        known = row.ppl if ppl == "ppl" else known
        return (found.value, known.value) if found and known and known.value > 0 else None

    made = [(row, at) for row in points if row.steps is not None and (at := place(row)) is not None]
    star = place(real) if real else None
    for source, steps in dict.fromkeys((row.source, row.steps) for row, _ in made):
        here = [(row, at) for row, at in made if (row.source, row.steps) == (source, steps)]
        series = [
            Series(
                name=method,
                style=styles[method],
                points=[
                    Point(x=x, y=y, note=f"T = {row.temperature:g}", hollow=row.temperature != 1.0)
                    for row, (x, y) in sorted(here, key=lambda one: one[0].temperature or 0.0)
                    if row.label == method
                ],
            )
            for method in dict.fromkeys(row.label for row, _ in here)
        ]
        words = f"{source} source, {steps} {'pass' if steps == 1 else 'passes'}"
        chart = Chart(
            title=f"perplexity against entropy, {words}",
            caption=words,
            x=Axis(label=ENTROPIES[entropy]),
            y=Axis(label="perplexity", scale="log"),
            series=series,
            marks=[(*star, REAL)] if star else [],
        )
        out.append((str(source), chart))
    return out


def notes_on(lines: Sequence[Line], settings: FrontierSettings) -> list[str]:
    """What the ratios mean, and which control was used where the chosen one is missing."""
    swept_at = ", ".join(f"{t:g}" for t in settings.temperatures)
    notes = [
        f"temperatures {swept_at}; log-perplexity is linear in entropy between neighbouring points, and unknown beyond",
        "a ratio below 1 is better than the control; outside: the control has no text of that entropy",
    ]
    used = {c.method for line in lines if (c := line.beside(lines, *controls(settings))) is not None}
    if settings.definition == "geometric":
        notes.append("perplexity here is exp of the mean over texts of their mean NLL; the paper's is in the points")
    if used - {settings.control}:
        notes.append(f"no run is called {settings.control}: the control is {', '.join(sorted(used))}")
    for line in lines:
        if line.fit:
            notes.append(
                f"{line.label}, {line.run.source}, {line.steps} steps: KL of its tokens to the training split's is "
                f"{line.fit.kl[0]:.4f} bits without a bias, {min(line.fit.kl):.4f} with it "
                f"({line.fit.floor:.4f} for as many tokens drawn from the split)"
            )
    return notes
