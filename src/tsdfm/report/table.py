"""A table: shown in the terminal, written as Markdown and JSON, and read again for the HTML page.

    table = Table("main", "Main results", [Column("method", "method", "left"), Column("ppl", "PPL", format=".2f")])
    table.add(method="teacher", ppl=3.1)
    table.save(Path("runs/demo/report"))       # main.md, main.json

A row is a dict; columns pick from it, so the JSON may hold more than is shown. `marks` of a row lists columns to be
followed by †, the sign of collapsed text; NAME_spread is shown after a ±; a row with `paper` is quoted from the paper,
from models of another scale.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from tsdfm import terminal
from tsdfm.report.rows import Plain, finite_or_none
from tsdfm.store.files import write_json
from tsdfm.store.files import write_text as write_text  # the viewer takes it from here

DAGGER = "†"
COLLAPSED = f"{DAGGER} collapsed: its entropy is more than one bit under held-out text; such perplexity says little."
MISSING = "–"
BETTER = {"perplexity": "lower", "valid stories": "higher", "nll": "lower", "mauve": "higher"}


@dataclass(frozen=True)
class Column:
    """What of a row to show. `format` is Python's (`.2f`, `.1%`, `,d`), or `text`."""

    name: str
    label: str = ""
    align: Literal["left", "right"] = "right"
    format: str = "text"

    def show(self, row: Mapping[str, Any]) -> str:
        """The value of a row as text."""
        value = row.get(self.name)
        if value is None:
            return ""
        if isinstance(value, float) and not math.isfinite(value):
            return MISSING
        text = str(value) if self.format == "text" or isinstance(value, str) else f"{value:{self.format}}"
        spread = row.get(f"{self.name}_spread")
        text += f" ± {spread:{self.format}}" if spread is not None and self.format != "text" else ""
        return f"{text}{DAGGER}" if self.name in row.get("marks", ()) else text


SOURCE, METHOD = Column("source", "source", "left"), Column("method", "method", "left")
ORIGIN = Column("origin", "from", "left")
STEPS, VALID = Column("steps", "steps"), Column("valid", "valid stories", format=".3f")
PPL, ENTROPY = Column("ppl", "perplexity", format=".2f"), Column("entropy_bits", "entropy (bits)", format=".2f")


def judge_columns(names: Iterable[str]) -> list[Column]:
    """The perplexity under each of some judges, a column for each."""
    return [Column(f"ppl {name}", f"ppl, {name}", format=".2f") for name in names]


@dataclass(frozen=True)
class Quote:
    """A table of the paper: its label, the scale of its models, its own figures, and the labels of tables beside it.

    `keys` name the levels of the figures, outermost first; `names` say what the numbers of one figure are.
    """

    label: str
    scale: str
    figures: Any
    beside: str = ""
    keys: Sequence[str] = ()
    names: Sequence[str] = ()
    known: Mapping[str, Any] = field(default_factory=dict)  # what all of its rows share
    sources: Mapping[str, str] = field(default_factory=dict)  # of its methods, where they are not all uniform

    def rows(self, **asked: Container[Any]) -> list[Plain]:
        """Its figures as rows, in its order; of a key that is `asked` for, these values alone."""
        found: list[tuple[Plain, Any]] = [({}, self.figures)]
        for key in self.keys:
            found = [
                ({**at, key: value}, inside)
                for at, some in found
                for value, inside in some.items()
                if value in asked.get(key, some)
            ]
        same = {"source": "uniform", "origin": self.scale, "paper": True, **self.known}
        rows = [{**same, **at, **dict(zip(self.names, figures, strict=True))} for at, figures in found]
        return [{**row, "source": self.sources.get(row["method"], "")} for row in rows] if self.sources else rows

    def note(self) -> str:
        """What must be known of quoted rows."""
        label = self.beside or self.label
        return f"figures marked paper are the paper's ({label}): models of another scale, other judges"


@dataclass
class Table:
    """Rows under columns, with notes below and what made them."""

    name: str
    title: str
    columns: list[Column]
    rows: list[Plain] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    quote: Quote | None = None
    about: Plain = field(default_factory=dict)  # command, hardware, seed, samples, judge, …

    def add(self, **row: Any) -> None:
        """One more row."""
        self.rows.append(row)

    def cells(self, row: Mapping[str, Any]) -> list[str]:
        """A row as the texts of its columns."""
        return [column.show(row) for column in self.columns]

    def footnotes(self) -> list[str]:
        """The notes, and what † means if it occurs."""
        marked = any(row.get("marks") and not row.get("paper") for row in self.rows)
        return [*self.notes, *([COLLAPSED] if marked else []), *made_with(self.about)]

    def directions(self) -> list[str]:
        """Which way is better, for what the title and the columns name."""
        words = " ".join([self.title, *(column.label for column in self.columns)]).lower()
        found = [f"{name}: {way} is better" for name, way in BETTER.items() if name in words]
        return ["; ".join(found)] if found else []

    def plain(self) -> Plain:
        """For JSON."""
        quoted = ("label", "scale", "figures")
        return {
            "title": self.title,
            "columns": [asdict(column) for column in self.columns],
            "rows": mapped(self.rows, finite_or_none),
            "notes": self.footnotes(),
            "paper": {name: getattr(self.quote, name) for name in quoted} if self.quote else None,
            **self.about,
        }

    @classmethod
    def read(cls, name: str, found: Mapping[str, Any]) -> Table:
        """A table from its JSON; its notes say what made it."""
        known = [{f.name: c[f.name] for f in fields(Column) if f.name in c} for c in found["columns"]]
        rows = [row for row in found["rows"] if isinstance(row, dict)]
        columns = [Column(**{"label": c["name"], **c}) for c in known]
        return cls(name, str(found.get("title") or name), columns, rows, list(found.get("notes") or ()))

    def save(self, folder: str | Path) -> Path:
        """Write `<name>.json` and `.md` into `folder`; returns the JSON's path."""
        folder = Path(folder)
        write_text(folder / f"{self.name}.md", self.markdown())
        return write_json(folder / f"{self.name}.json", self.plain())

    def show(self, console: Console | None = None, *, most: int | None = None) -> None:
        """Print it with its notes; or, short, its first `most` rows that are not quoted, and how many there are."""
        console = console or terminal.console(width=None if Console().is_terminal else 160)
        rows = self.rows if most is None else [row for row in self.rows if not row.get("paper")][:most]
        table = RichTable(title=escape(self.title))
        for column in self.columns:
            table.add_column(escape(column.label), justify=column.align)
        for row in rows:
            table.add_row(*map(escape, self.cells(row)), style="dim" if row.get("paper") else None)
        console.print(table)
        left = len(self.rows) - len(rows)
        notes = self.footnotes() if most is None else [f"{left} more rows with --verbose"] if left else []
        for note in (*self.directions(), *notes):
            console.print(note, style="dim", markup=False, highlight=False)

    def markdown(self) -> str:
        """A pipe table; quoted rows in italics."""
        head = [markdown_escape(c.label) for c in self.columns]
        rule = ["---" if c.align == "left" else "---:" for c in self.columns]
        lines = [f"### {markdown_escape(self.title)}", "", pipes(head), pipes(rule)]
        for row in self.rows:
            cells = [markdown_escape(cell) for cell in self.cells(row)]
            lines.append(pipes([f"*{cell}*" if cell else "" for cell in cells] if row.get("paper") else cells))
        notes = [f"- {markdown_escape(note)}" for note in self.footnotes()]
        return "\n".join([*lines, "", *notes]) + "\n"


def mapped(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """Plain values with every text and number passed through `leaf`."""
    if isinstance(value, Mapping):
        return {name: mapped(item, leaf) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [mapped(item, leaf) for item in value]
    return leaf(value)


def made_with(about: Mapping[str, Any]) -> list[str]:
    """A line on what the figures are: texts, seed, judge, hardware; and one with the command."""
    words = [f"{about['samples']} texts a figure"] if about.get("samples") else []
    words += [f"seed {about['seed']}"] if about.get("seed") is not None else []
    words += [f"judge {name}" for name in about.get("judge_names", ())]
    words += [f"on {about['hardware']}"] if about.get("hardware") else []
    return [line for line in ("; ".join(words), f"command: {about['command']}" if about.get("command") else "") if line]


def pipes(cells: Sequence[str]) -> str:
    """One line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def markdown_escape(text: str) -> str:
    """Text that Markdown shows as it is, also inside a table."""
    return re.sub(r"([\\`*_{}\[\]<>|#~])", r"\\\1", text).replace("\n", " ")
