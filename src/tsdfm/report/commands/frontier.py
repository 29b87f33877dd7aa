"""`tsdfm report frontier`: perplexity against entropy, and perplexity at matched entropy relative to a control."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tsdfm.errors import UserError
from tsdfm.report.commands.main import add_target
from tsdfm.report.desk import Desk
from tsdfm.report.frontier_figure import frontier_figure
from tsdfm.report.runs import Run
from tsdfm.report.settings import FrontierSettings
from tsdfm.report.sweeps import Line, matched, swept
from tsdfm.report.table import Column, Table, write_text
from tsdfm.report.unigram import MORE, SUFFIX, Fit, counts_of, data_counts, fit

KEPT = (
    "source",
    "steps",
    "nfe",
    "temperature",
    "samples",
    "ppl",
    "ppl_interval",
    "ppl_corpus",
    "ppl_geometric",
    "entropy_bits",
    "entropy_interval",
    "entropy_nats",
    "bigram_entropy_bits",
    "valid",
    "valid_interval",
    "collapsed",
    "checkpoint",
)
COLUMNS = [
    Column("source", "source", "left"),
    Column("method", "method", "left"),
    Column("steps", "steps"),
    Column("ppl", "ppl, T = 1", format=".2f"),
    Column("entropy_bits", "entropy, T = 1", format=".2f"),
    Column("at_own", "ppl / control at that entropy"),
    Column("over", "mean over shared entropies"),
    Column("bigram_entropy_bits", "bigram entropy", format=".2f"),
    Column("bigram_at_own", "ppl / control at that"),
    Column("bigram_over", "mean over shared"),
]


def run(settings: FrontierSettings) -> Path:
    """Make the frontier; returns the path of its JSON."""
    desk = Desk("frontier", settings)
    desk.need_judge()
    desk.need_model()
    lines = all_lines(desk, settings)
    rows = [row_for(desk, line, lines, settings) for line in lines]
    for number in range(2, len(desk.judge_names()) + 1):
        one_table(desk, lines, rows, number, settings)
    against_table(desk, lines, rows, settings)
    return one_table(desk, lines, rows, 1, settings)


def one_table(
    desk: Desk, lines: Sequence[Line], rows: Sequence[dict[str, Any]], number: int, settings: FrontierSettings
) -> Path:
    """The table, its JSON and its figures under one judge: `frontier`, `frontier-judge-2`, …"""
    judge, title = desk.judge_names()[number - 1], "Perplexity at matched entropy, relative to the control"
    name, title = ("frontier", title) if number == 1 else (f"frontier-judge-{number}", f"{title}, under {judge}")
    table = Table(name, title, list(COLUMNS))
    for row in rows:
        table.add(**{**row, **row["judges"][judge]})
    table.notes += notes_on(lines, settings)
    add_target(desk, table, judge if number > 1 else None)
    target = table.about.pop("target", None)
    if target and target["samples"] != desk.measure.samples:
        table.notes.append(f"held-out text is {target['samples']} texts only: a pool of fewer texts has less entropy")
    table.about["points"] = [point(line, seen.row, judge) for line in lines for seen in line.cells]
    table.about["target"] = {name: target.get(name) for name in (*KEPT, "method")} if target else None
    table.about |= {"judge": judge, "control": settings.control, "definition": settings.definition}
    table.about["temperatures"] = list(settings.temperatures)
    path = desk.finish(table)
    draw(desk.report, table, "ppl_geometric" if settings.definition == "geometric" else "ppl")
    return path


def against_table(
    desk: Desk, lines: Sequence[Line], rows: Sequence[dict[str, Any]], settings: FrontierSettings
) -> None:
    """The ratios to other methods than the control, under the first judge."""
    names, judge = other_names(lines, settings), desk.judge_names()[0]
    if not names:
        return
    columns = [*COLUMNS[:3], *(Column(name, f"ppl / {name}") for name in names)]
    table = Table("frontier-against", "Perplexity at matched entropy, relative to other methods", columns)
    for row in rows:
        found = row["judges"][judge]["against"]
        table.add(
            **{name: row[name] for name in ("source", "method", "steps")}, **{n: found[n]["at_own"] for n in found}
        )
    table.notes.append("at a method's own entropy at T = 1; outside: the other has no text of that entropy")
    desk.finish(table)


def draw(report: Path, table: Table, ppl: str) -> None:
    """The figures: by token histogram, and by pooled bigrams."""
    found = table.plain()
    for name, entropy, label in (
        (table.name, "entropy_bits", "entropy of the token histogram (bits)"),
        (f"{table.name}-bigrams", "bigram_entropy_bits", "entropy of pooled bigrams (bits)"),
    ):
        write_text(report / f"{name}.svg", frontier_figure(found, entropy, label, ppl))


def all_lines(desk: Desk, settings: FrontierSettings) -> list[Line]:
    """The sweep of every run at every step count, and those with a unigram bias after their own."""
    lines, geometric = list[Line](), settings.definition == "geometric"
    if settings.unigram and all(model.method != settings.unigram for model in desk.found.models):
        known = ", ".join(dict.fromkeys(model.method for model in desk.found.models))
        raise UserError(f"no run is called {settings.unigram}: give --unigram one of {known}")
    for model in desk.found.models:
        for steps in settings.steps:
            lines.append(swept(desk, model, steps, settings.temperatures, geometric=geometric))
            if settings.unigram and model.method == settings.unigram:
                found = unigram_fit(desk, model, steps)
                about = {"unigram": found.plain()}
                lines.append(
                    swept(
                        desk,
                        model,
                        steps,
                        settings.temperatures,
                        geometric=geometric,
                        bias=found.bias,
                        suffix=SUFFIX,
                        about=about,
                    )
                )
    return lines


def unigram_fit(desk: Desk, model: Run, steps: int) -> Fit:
    """The bias that gives a run's texts the training split's token frequencies."""
    vocab = desk.model(model).velocity.spec.vocab
    data = data_counts(desk.found.tokens_or_refuse(), desk.bench.cells.folder)
    found = fit(
        data,
        lambda bias, seed: counts_of(desk.cell(model, steps, temperature=1.0, bias=bias, seed=seed, times=MORE), vocab),
        desk.measure.seed,
    )
    off = " → ".join(f"{kl:.4f}" for kl in found.kl)
    desk.said.print(
        f"{model.name}: {steps} steps, unigram bias, KL to the data {off} bits", highlight=False, soft_wrap=True
    )
    return found


def control_for(line: Line, lines: Sequence[Line], name: str) -> Line | None:
    """The control of the same source and step count: the method of that name, else FS-DFM, else the teacher."""
    for method in (name, "fs-dfm", "teacher"):
        found = other_line(line, lines, method)
        if found is not None:
            return found
    return None


def other_line(line: Line, lines: Sequence[Line], method: str) -> Line | None:
    """The line of that method, of the same source and step count."""
    same = (x for x in lines if (x.model.source, x.steps) == (line.model.source, line.steps))
    return next((x for x in same if x.method == method), None)


def other_names(lines: Sequence[Line], settings: FrontierSettings) -> list[str]:
    """The methods every line is also compared with, where they are: the biased control, and those asked for."""
    biased = [f"{settings.unigram} {SUFFIX}"] if settings.unigram else []
    known = {line.method for line in lines}
    return [name for name in dict.fromkeys((*biased, *settings.against)) if name in known and name != settings.control]


def row_for(desk: Desk, line: Line, lines: Sequence[Line], settings: FrontierSettings) -> dict[str, Any]:
    """A method at one step count; `judges` has its figures at T = 1 and its ratios under each judge."""
    own, control = line.own(), control_for(line, lines, settings.control)
    row: dict[str, Any] = {
        "source": line.model.source,
        "method": line.label,
        "run": line.model.name,
        "steps": line.steps,
        "marks": [] if own is None or not own["collapsed"] else ["ppl", "entropy_bits"],
        "control": control is line,
        "control_method": control.method if control is not None and control is not line else None,
        **line.about,
    }
    if own is not None:
        row |= {name: own[name] for name in ("entropy_bits", "entropy_interval", "bigram_entropy_bits")}
    row["judges"] = {judge: figures_of(desk, line, control, lines, judge, settings) for judge in desk.judge_names()}
    return row


def figures_of(
    desk: Desk, line: Line, control: Line | None, lines: Sequence[Line], judge: str, settings: FrontierSettings
) -> dict[str, Any]:
    """What one judge says of a line: its perplexity at T = 1, and the ratios to the control and to others."""
    own, out = line.own(), dict[str, Any]()
    if own is not None:
        ppl = "ppl_geometric" if settings.definition == "geometric" else "ppl"
        found = judged(own, judge)
        out |= {"ppl": found[ppl], "ppl_interval": found[f"{ppl}_interval"]}
    about = {"draws": settings.draws, "seed": desk.measure.seed}
    if control is line:
        out["at_own"] = "control"
    elif control is not None:
        out |= matched(line, control, judge, **about)
    others = {name: other_line(line, lines, name) for name in other_names(lines, settings)}
    out["against"] = {
        name: matched(line, other, judge, **about)
        for name, other in others.items()
        if other is not None and other is not line and other is not control
    }
    return out


def judged(row: dict[str, Any], judge: str) -> dict[str, Any]:
    """A row with one judge's figures in it."""
    found: dict[str, Any] = row["judges"][judge]
    return row | found


def point(line: Line, row: dict[str, Any], judge: str) -> dict[str, Any]:
    """A point of the figure."""
    found = judged(row, judge)
    return {"method": line.label, "run": line.model.name, **{n: found[n] for n in KEPT if n in found}}


def notes_on(lines: Sequence[Line], settings: FrontierSettings) -> list[str]:
    """What the ratios mean, and which control was used where the chosen one is missing."""
    warm = ", ".join(f"{t:g}" for t in settings.temperatures)
    notes = [
        f"temperatures {warm}; log-perplexity is linear in entropy between neighbouring points, and unknown beyond",
        "a ratio below 1 is better than the control; outside: the control has no text of that entropy",
    ]
    used = {c.method for line in lines if (c := control_for(line, lines, settings.control)) is not None}
    if settings.definition == "geometric":
        notes.append("perplexity here is exp of the mean over texts of their mean NLL; the paper's is in the points")
    if used - {settings.control}:
        notes.append(f"no run is called {settings.control}: the control is {', '.join(sorted(used))}")
    for line in lines:
        if "unigram" in line.about:
            found = line.about["unigram"]
            notes.append(
                f"{line.label}, {line.model.source}, {line.steps} steps: KL of its tokens to the training split's is "
                f"{found['kl_before']:.4f} bits without a bias, {found['kl_after']:.4f} with it "
                f"({found['floor']:.4f} for as many tokens drawn from the split)"
            )
    return notes
