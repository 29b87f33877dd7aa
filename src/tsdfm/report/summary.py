"""What is printed of `metrics.json`: a row a model, or every row with its intervals; texts; where the report is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from tsdfm.metrics.intervals import Estimate
from tsdfm.report.rows import REAL, Plain, Row, rows_in
from tsdfm.report.table import ENTROPY, METHOD, SOURCE, Column, Table, judge_columns
from tsdfm.terminal import visible

WIDE = [
    Column("temperature", "T", format="g"),
    Column("ppl_corpus", "ppl, pooled", format=".2f"),
    Column("ppl_median", "ppl, median", format=".2f"),
    Column("bits_per_char", "bits a character", format=".2f"),
    Column("bigram_entropy_bits", "bigram entropy", format=".2f"),
    Column("repetition", "repetition", format=".1%"),
    Column("compass_calls", "compass calls", format=".0f"),
]
MOST = 12  # rows of the table that a pipeline ends with


def closing(out: Path, page: Path | None = None, console: Console | None = None) -> None:
    """What a pipeline ends with: one table of at most twelve rows, three texts, and where the report lies."""
    console = console or Console(width=None if Console().is_terminal else 120)
    rows = rows_in(out / "report" / "metrics.json")
    table = by_steps(rows)
    if len(table.rows) > MOST:
        table.notes.append(f"and {len(table.rows) - MOST} more models in {out / 'report' / 'metrics.json'}")
        table.rows = [*table.rows[: MOST - 1], table.rows[-1]]
    table.show(console)
    for line in texts_of(rows, 3):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    where = page or out / "report"
    console.print(f"the report is {where}: open it in a browser", highlight=False, soft_wrap=True)


def pair(row: Row) -> str:
    """Perplexity and entropy: `56.1 (7.20)`, with as many digits of a perplexity as matter."""
    ppl = row.ppl.value if row.ppl else None
    shown = "–" if ppl is None else f"{ppl:.2f}" if ppl < 10 else f"{ppl:.1f}"
    return f"{shown} ({row.entropy:.2f})"


def both(row: Row) -> str:
    """Of a story, its share that is valid and its negative log-likelihood: `0.64 (22.5)`; of other texts, the pair."""
    if row.valid is None:
        return pair(row)
    return f"{row.valid.value:.2f}" + ("" if row.nll is None else f" ({row.nll:.1f})")


def by_steps(rows: Sequence[Row], show: Callable[[Row], str | None] = both) -> Table:
    """A row a model: valid share (NLL a story) by steps, or perplexity (entropy) where there are no stories."""
    made = [row for row in rows if row.steps is not None]
    steps = sorted({row.steps for row in made if row.steps is not None})
    stories = any(row.valid for row in made)
    title = "Valid stories (NLL a story) by network passes" if stories else "Perplexity (entropy in bits) by steps"
    columns = [SOURCE, METHOD, *(Column(str(at), str(at)) for at in steps)]
    table = Table("by-steps", title, columns, about=about(rows))
    models: dict[tuple[str | None, str], list[Row]] = {}
    for row in made:
        models.setdefault((row.source, row.label), []).append(row)
    for (source, label), mine in models.items():
        marks = [str(row.steps) for row in mine if row.collapsed]
        table.add(source=source, method=label, **{str(row.steps): show(row) for row in mine}, marks=marks)
    for row in rows:
        if row.method == REAL and steps:
            table.add(source="", method=REAL, **{str(steps[-1]): show(row)})
    if made and not any(row.ppl or row.valid for row in made):
        table.notes.append("no judge has read these texts: --judges names one (docs/judges.md)")
    return table


def every_row(rows: Sequence[Row], *, wide: bool = False) -> Table:
    """Every row with its intervals; story columns only where the story world judged.

    A `wide` one has more columns, where they tell something: no compass and a temperature of 1 do not.
    """
    stories = any(row.valid for row in rows)
    columns = [METHOD, SOURCE, Column("steps", "steps", format="d"), Column("nfe", "NFE", format=".4g")]
    columns += [Column("valid_text", "valid stories"), Column("nll", "NLL / story", format=".1f")] if stories else []
    columns += [Column("ppl_text", "perplexity"), ENTROPY, Column("tokens_per_s", "tokens/s", format=",.0f")]
    others = dict.fromkeys(name for row in rows for name in list(row.judges)[1:])
    columns += judge_columns(others)
    judged = "the exact judge of the story world" if stories else "language models"
    table = Table("metrics", f"Texts judged by {judged}", columns, about=about(rows))
    if stories:
        table.notes.append("perplexity and NLL of stories are under the world with 1/1000 of noise")
    for row in rows:
        ppl = {f"ppl {name}": one.ppl.value if one.ppl else None for name, one in row.judges.items()}
        shown = {"ppl_text": with_interval(row.ppl, ".2f"), "valid_text": with_interval(row.valid, ".3f", ".2f")}
        marks = ["entropy_bits", "ppl_text"] if row.collapsed else []
        table.add(**{**row.plain(), "method": row.label}, **shown, **ppl, marks=marks)
    if wide:
        table.columns += [c for c in WIDE if {row.get(c.name) for row in table.rows} - {None, 0.0, 1.0}]
    return table


def with_interval(found: Estimate | None, form: str, ends: str | None = None) -> str | None:
    """`0.812 [0.75, 0.86]`; of one text, `0.812`."""
    if found is None or found.interval is None:
        return None if found is None else f"{found.value:{form}}"
    return f"{found.value:{form}} [{found.low:{ends or form}}, {found.high:{ends or form}}]"


def about(rows: Sequence[Row]) -> Plain:
    """What made the rows, for the line below the table."""
    first = next((row for row in rows if row.steps is not None), None)
    if first is None:
        return {}
    sampled = f"T = {first.temperature:g}, top-p {first.top_p:g}" if first.top_p and first.temperature else ""
    known = {"samples": first.samples, "seed": first.seed, "hardware": first.hardware, "sampled": sampled}
    return {**known, "judge_names": [name for name in first.judges if name]}


def texts_of(rows: Sequence[Row], most: int) -> list[str]:
    """The first text of some models: of the fewest steps' middle, the last models first where not all are shown."""
    made = [row for row in rows if row.steps is not None and row.texts]
    if len(made) > most:
        counts = sorted({row.steps for row in made if row.steps is not None})
        at = 8 if 8 in counts else counts[0]  # the paper's headline is at eight
        made = [row for row in made if row.steps == at and row.source == made[0].source][-most:]
    return [visible(f"{row.label}, {row.source} source, {row.steps} steps: {row.texts[0]}") for row in made]
