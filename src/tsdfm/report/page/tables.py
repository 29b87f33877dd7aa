"""The page's tables, as HTML that needs no script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tsdfm.report.page.charts import Chart, finite, numbers_of
from tsdfm.report.page.gather import Found, label
from tsdfm.report.page.markup import REAL, badge, details, esc, number, percent, table

COLLAPSED = '<span class="collapsed" title="entropy more than one bit under held-out text">† collapsed</span>'
Show = Callable[[Any], str]


def headline(found: Found) -> str:
    """Methods by steps, one table a source: valid stories where a story judge was there, perplexity otherwise."""
    name, interval, show, title, better = first_measure(found)
    out = []
    for source in found.sources:
        rows = [row for row in found.made if row["source"] == source and finite(row.get(name))]
        if not rows:
            continue
        steps = sorted({int(row["steps"]) for row in rows})
        cells = {(label(row), int(row["steps"])): row for row in rows}
        best = {s: better(row[name] for row in rows if int(row["steps"]) == s) for s in steps}
        body = []
        for method in dict.fromkeys(label(row) for row in rows):
            line = [badge(method, found.methods)]
            for s in steps:
                row = cells.get((method, s))
                line.append("" if row is None else cell(row, name, interval, show, bold=row[name] == best[s]))
            body.append(line)
        foot = None
        if found.real and finite(found.real.get(name)):
            foot = badge(REAL, found.methods), cell(found.real, name, interval, show, bold=False)
        caption = f"{title} by network passes, {esc(source)} source"
        head = ["passes", *(number(s) for s in steps)]
        about = f"{title} by method and passes, {source} source"
        out.append(table(head, body, caption=caption, label=about, foot=foot))
    return f'<div class="pair">{"".join(out)}</div>' if out else ""


def first_measure(found: Found) -> tuple[str, str, Show, str, Callable[..., float]]:
    """What the headline counts."""
    if any(finite(row.get("valid")) for row in found.made):
        return "valid", "valid_interval", percent, "Valid stories", max
    return "ppl", "ppl_interval", number, "Perplexity", min


def cell(row: dict[str, Any], name: str, interval: str, show: Show, *, bold: bool) -> str:
    """A value with its interval under it, and the mark of a collapsed row."""
    value = show(row.get(name))
    if not value:
        return ""
    text = (f"<b>{value}</b>" if bold else value) + (" †" if row.get("collapsed") else "")
    low_high = row.get(interval)
    if isinstance(low_high, list) and len(low_high) == 2 and all(map(finite, low_high)):
        low, high = (show(end).removesuffix("\u202f%") for end in low_high)
        text += f' <small class="interval">{low}–{high}</small>'
    return text


COLUMNS: tuple[tuple[str, str, str, Show], ...] = (
    ("valid", "valid_interval", "valid", percent),
    ("ppl", "ppl_interval", "perplexity", number),
    ("ppl_corpus", "ppl_corpus_interval", "ppl, pooled", number),
    ("ppl_median", "ppl_median_interval", "ppl, median", number),
    ("nll", "nll_interval", "NLL, nats a text", lambda v: number(v, 1)),
    ("bits_per_char", "bits_per_char_interval", "bits a character", number),
    ("entropy_bits", "entropy_interval", "entropy, bits", number),
    ("bigram_entropy_bits", "bigram_entropy_interval", "bigram entropy", number),
    ("repetition", "repetition_interval", "repetition", percent),
    ("compass_calls", "", "compass calls", lambda v: number(v, 0)),
    ("tokens_per_s", "", "tokens/s", lambda v: number(v, 0)),
)


def everything(found: Found) -> str:
    """Every row with every column that has something in it."""
    rows = [*found.made, *([found.real] if found.real else [])]
    other = [row for row in found.rows if row not in rows]
    rows += other
    columns = [
        c for c in COLUMNS if any(finite(row.get(c[0])) and (c[2] != "compass calls" or row[c[0]]) for row in rows)
    ]
    warm = len({row.get("temperature") for row in rows if row.get("steps") is not None}) > 1
    head = ["method", "source", "passes", *(["T"] if warm else []), *(title for _, _, title, _ in columns)]
    body = []
    for row in rows:
        line = [badge(label(row), found.methods) + (f" {COLLAPSED}" if row.get("collapsed") else "")]
        line += [esc(row.get("source") or ""), number(row.get("steps"))]
        line += [number(row.get("temperature"), 2)] if warm else []
        line += [
            cell({**row, "collapsed": False}, name, interval, show, bold=False) for name, interval, _, show in columns
        ]
        body.append(line)
    room = "dense" if len(head) < 9 else "many"  # intervals stand beside the values, or below them
    return f'<div class="{room}">{table(head, body, left=2, label="all measurements")}</div>'


def chart_numbers(charts: Sequence[Chart], x: str, y: str) -> str:
    """The points of some figures as a table to unfold: the figures for those who cannot see them."""
    rows = []
    for title, name, point in numbers_of(charts):
        ends = f"{number(point['low'])}–{number(point['high'])}" if "low" in point else ""
        rows.append([esc(title), esc(name), number(point["x"]), number(point["y"]), ends, esc(point.get("note", ""))])
    full = ["figure", "series", esc(x), esc(y), "interval", "note"]
    used = [i for i in range(6) if i < 4 or any(row[i] for row in rows)]
    picked = [[row[i] for i in used] for row in rows]
    return details("The numbers", table([full[i] for i in used], picked, left=2, label=f"numbers: {y}"))


def examined(found: Found) -> str:
    """What the examination of each compass said."""
    exams = {source: exam for source, exam in found.compass.items() if isinstance(exam, dict)}
    strategies = list(dict.fromkeys(name for exam in exams.values() for name in exam.get("accuracy") or {}))
    rows = []
    for source, exam in exams.items():
        shares = [percent(v) if finite(v := (exam.get("accuracy") or {}).get(name)) else "" for name in strategies]
        falls = percent(exam["smoothness"]) if finite(exam.get("smoothness")) else ""
        rows.append([esc(source), *shares, falls, number(exam.get("spearman"))])
    if not rows:
        return ""
    words = ["overall" if name == "overall" else esc(name.replace("_", " ")) for name in strategies]
    head = ["source", *words, "falls between neighbouring times", "rank correlation with t"]
    caption = "Held-out pairs in which the real state has the lower energy, by what was done to the other"
    return table(head, rows, caption=caption, label="examination of the compass")


def written_table(made: dict[str, Any]) -> str:
    """A table that `tsdfm report` wrote, with its notes; rows quoted from the paper are in italics."""
    columns = [c if isinstance(c, dict) else {"name": c} for c in made["columns"]]
    names = [str(c.get("name")) for c in columns]
    words = [c.get("align", "right") == "left" for c in columns]
    left = words.index(False) if False in words else len(words)
    body = []
    for row in (row for row in made["rows"] if isinstance(row, dict)):
        marks = row.get("marks") or ()
        cells = [shown(row.get(n), c) for n, c in zip(names, columns, strict=True)]
        cells = [f"{cell}†" if cell and n in marks else cell for n, cell in zip(names, cells, strict=True)]
        body.append([f"<i>{cell}</i>" if cell else "" for cell in cells] if row.get("paper") else cells)
    head = [esc(c.get("label") or c.get("name")) for c in columns]
    out = table(head, body, left=left, label=str(made.get("title", "table"))) if columns and body else ""
    out += "".join(f'<p class="note">{esc(note)}</p>' for note in made.get("notes") or [])
    return out


def shown(value: Any, column: dict[str, Any]) -> str:
    """A cell in the column's own format, where it has one that Python knows."""
    if value is None:
        return ""
    if isinstance(value, list) and len(value) == 2 and all(map(finite, value)):
        return f"{number(value[0])}–{number(value[1])}"
    if not finite(value):
        return esc(value)
    form = column.get("format")
    if form == "percent":
        return percent(value)
    try:
        return esc(format(value, form).replace("-", "\u2212")) if form else number(value)
    except (TypeError, ValueError):
        return number(value)
