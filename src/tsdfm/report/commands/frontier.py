"""`tsdfm report frontier`: perplexity against entropy over a sweep of the temperature, and at matched entropy."""

from __future__ import annotations

from itertools import product

from torch import Tensor

from tsdfm.charts import figure
from tsdfm.errors import UserError
from tsdfm.report.desk import Desk
from tsdfm.report.rows import Plain
from tsdfm.report.runs import TrainedRun
from tsdfm.report.settings import FrontierSettings
from tsdfm.report.sweeps import ENTROPIES, HINT, POINT, Line, frontier_charts, point_of, swept
from tsdfm.report.table import METHOD, SOURCE, STEPS, Column, Table
from tsdfm.report.unigram import MORE, SUFFIX, Fit, counts_of, data_counts, fit
from tsdfm.store.files import write_text

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


def unigram_fit(desk: Desk, run: TrainedRun, steps: int) -> Fit:
    """The bias that gives a run's texts the training split's token frequencies."""
    vocab = desk.model(run).velocity.spec.vocab
    data = data_counts(desk.runs.tokens_or_refuse(), desk.cells.folder)

    def counts(bias: Tensor | None, seed: int) -> Tensor:
        return counts_of(desk.cell(run, steps, temperature=1.0, bias=bias, seed=seed, times=MORE), vocab)

    found = fit(data, counts, desk.asked.seed)
    off = " → ".join(f"{kl:.4f}" for kl in found.kl)
    desk.say(f"{run.name}: {steps} steps, unigram bias, KL to the data {off} bits")
    return found


def frontier(desk: Desk, settings: FrontierSettings) -> Table:
    """`tsdfm report frontier`: tables and figures under every judge, of which the first is the command's own."""
    made = Frontier(desk, settings)
    first, *others = desk.judge_names()
    for number, judge in enumerate(others, 2):
        desk.finish(made.table(judge, number), beside=True)
    if made.names:
        desk.finish(made.against(first), beside=True)
    return made.table(first, 1)


class Frontier:
    """Every run's sweep at every step count, each compared with the control and with other methods."""

    def __init__(self, desk: Desk, settings: FrontierSettings) -> None:
        known = dict.fromkeys(run.method for run in desk.runs.models)
        if settings.unigram and settings.unigram not in known:
            raise UserError(f"no run is called {settings.unigram}: give --unigram one of {', '.join(known)}")
        self.desk, self.settings, self.lines = desk, settings, list[Line]()
        geometric = settings.definition == "geometric"
        self.ppl = "ppl_geometric" if geometric else "ppl"
        for run, steps in product(desk.runs.models, settings.steps):
            fits = [None, unigram_fit(desk, run, steps)] if run.method == settings.unigram else [None]
            for one in fits:
                self.lines.append(swept(desk, run, steps, settings.temperatures, geometric=geometric, fitted=one))
        biased = [f"{settings.unigram} {SUFFIX}"] if settings.unigram else []
        swept_ones = {line.method for line in self.lines} - {settings.control}
        self.names = [name for name in dict.fromkeys((*biased, *settings.against)) if name in swept_ones]
        self.rows = [self.row(line) for line in self.lines]

    def beside(self, line: Line) -> list[Line]:
        """The lines that were swept at the same source and step count."""
        return [x for x in self.lines if (x.run.source, x.steps) == (line.run.source, line.steps)]

    def control(self, line: Line) -> Line | None:
        """The control that was asked for; where there is no such run a blind student, or else a many-step model."""
        same = self.beside(line)
        asked = [x for x in same if x.method == self.settings.control]
        blind = [x for x in same if x.run.control and not x.fit]
        many = [x for x in same if x.run.many_step and not x.fit]
        return next(iter([*asked, *blind, *many]), None)

    def row(self, line: Line) -> Plain:
        """A method at one step count; `judges` has its figures at T = 1 and its ratios under each judge."""
        own, control = line.own(), self.control(line)
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
        return {**row, "judges": {judge: self.figures(line, judge) for judge in self.desk.judge_names()}}

    def figures(self, line: Line, judge: str) -> Plain:
        """What one judge says of a line: its perplexity at T = 1, and the ratios to the control and to others."""
        own, control, out = line.own(), self.control(line), Plain()
        how = {"draws": self.settings.draws, "seed": self.desk.asked.seed}
        if own is not None:
            plain = own.under(judge).plain()
            out |= {"ppl": plain.get(self.ppl), "ppl_interval": plain.get(f"{self.ppl}_interval")}
        if control is line:
            out["at_own"] = "control"
        elif control is not None:
            out |= line.matched(control, judge, **how)
        others = {other.method: other for other in reversed(self.beside(line))}
        out["against"] = {
            name: line.matched(others[name], judge, **how)
            for name in self.names
            if name in others and others[name] is not line and others[name] is not control
        }
        return out

    def against(self, judge: str) -> Table:
        """The table of ratios to other methods."""
        columns = [*COLUMNS[:3], *(Column(name, f"ppl / {name}") for name in self.names)]
        table = Table("frontier-against", "Perplexity at matched entropy, relative to other methods", columns)
        for row in self.rows:
            ratios = {name: one["at_own"] for name, one in row["judges"][judge]["against"].items()}
            table.add(**{name: row[name] for name in ("source", "method", "steps")}, **ratios)
        table.notes.append("at a method's own entropy at T = 1; outside: the other has no text of that entropy")
        return table

    def table(self, judge: str, number: int) -> Table:
        """The table under one judge, and its figures in files: `frontier`, `frontier-judge-2`, …"""
        settings, desk = self.settings, self.desk
        shown = [(line, row.under(judge)) for line in self.lines for row, _ in line.cells]
        name, title = "frontier", "Perplexity at matched entropy, relative to the control"
        if number > 1:
            name, title = f"frontier-judge-{number}", f"{title}, under {judge}"
        table = Table(name, title, COLUMNS, [{**row, **row["judges"][judge]} for row in self.rows], self.notes())
        desk.add_target(table, judge if number > 1 else None)
        target = table.about.pop("target", None)
        if target and target["samples"] != desk.asked.samples:
            table.notes.append(
                f"held-out text is {target['samples']} texts only: a pool of fewer texts has less entropy"
            )
        table.about |= {
            "points": [{**point_of(row), "run": line.run.name} for line, row in shown],
            "target": {n: target.get(n) for n in (*POINT, "method")} if target else None,
            "judge": judge,
            "control": settings.control,
            "definition": settings.definition,
            "temperatures": list(settings.temperatures),
        }
        for suffix, entropy in zip(("", "-bigrams"), ENTROPIES, strict=True):
            drawn = frontier_charts([row for _, row in shown], desk.real(judge), entropy, self.ppl)
            label = f"Perplexity against {ENTROPIES[entropy]}"
            write_text(desk.report / f"{name}{suffix}.svg", figure([*drawn.values()], label, HINT))
        return table

    def notes(self) -> list[str]:
        """What the ratios mean, and which control was used where the chosen one is missing."""
        temperatures, chosen = ", ".join(f"{t:g}" for t in self.settings.temperatures), self.settings.control
        notes = [
            f"temperatures {temperatures}; log-perplexity is linear in entropy between neighbouring points, and "
            "unknown beyond",
            "a ratio below 1 is better than the control; outside: the control has no text of that entropy",
        ]
        if self.settings.definition == "geometric":
            notes.append(
                "perplexity here is exp of the mean over texts of their mean NLL; the paper's is in the points"
            )
        used = {control.method for line in self.lines if (control := self.control(line)) is not None}
        if used - {chosen}:
            notes.append(f"no run is called {chosen}: the control is {', '.join(sorted(used))}")
        return notes + [
            f"{line.label}, {line.run.source}, {line.steps} steps: KL of its tokens to the training split's is "
            f"{line.fit.kl[0]:.4f} bits without a bias, {min(line.fit.kl):.4f} with it "
            f"({line.fit.floor:.4f} for as many tokens drawn from the split)"
            for line in self.lines
            if line.fit
        ]
