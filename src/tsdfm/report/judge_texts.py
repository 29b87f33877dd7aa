"""`tsdfm judge score`: files of texts before a judge, as a table and as JSON. (Here rather than with the judges, since
perplexities and their intervals are the report's.)"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tsdfm.judges import Judge, judge_from, score_file
from tsdfm.judges.base import OnDone, Score
from tsdfm.judges.settings import JudgeScoreSettings
from tsdfm.judges.texts import Texts, read_texts
from tsdfm.report.metrics.perplexity import judge_fields
from tsdfm.store.files import write_json
from tsdfm.tokens.tokenizer import Tokenizer, load_tokenizer

COLUMNS = (
    ("texts", "samples", "{:d}"),
    ("ppl", "ppl", "{:.1f}"),
    ("corpus", "ppl_corpus", "{:.1f}"),
    ("geometric", "ppl_geometric", "{:.1f}"),
    ("median", "ppl_median", "{:.1f}"),
    ("own token", "ppl_own", "{:.1f}"),
    ("bits/char", "bits_per_char", "{:.3f}"),
    ("next token", "next_token_accuracy", "{:.1%}"),
)


def run(settings: JudgeScoreSettings) -> list[dict[str, Any]]:
    """Score each file, print a row for it and write everything if asked."""
    files = {path: read_texts(path, settings.limit) for path in settings.texts}  # all are read before a model is
    tokenizer = load_tokenizer(settings.tokenizer) if settings.tokenizer is not None else None
    judge = judge_from(settings.judge, settings.device, settings.precision, settings.batch)
    cache = settings.cache or (settings.out.with_suffix(".scores.jsonl") if settings.out is not None else None)
    rows, scores = [], {}
    for path, found in files.items():
        with progress(path.name) as on_done:
            scores[str(path)] = scored(judge, found, cache, on_done)
        own = own_tokens(tokenizer, found) if tokenizer is not None else None
        fields = judge_fields(scores[str(path)], own)
        rows.append({"file": str(path), "samples": len(found.texts), **fields})
    if settings.out is not None:
        plain = {name: [asdict(score) for score in one] for name, one in scores.items()}
        about = {"judge": judge.fingerprint, "precision": judge.precision}
        write_json(settings.out, {**about, "rows": rows, "scores": plain})
    show(judge, rows, Console(width=120))
    return rows


def scored(judge: Judge, found: Texts, cache: Path | None, on_done: OnDone) -> list[Score]:
    """The scores of one file's texts, by way of the cache if there is one."""
    if cache is None:
        return judge.score(found.texts, prefixes=found.prefixes, on_done=on_done)
    return score_file(judge, found.texts, cache, prefixes=found.prefixes, on_done=on_done)


def own_tokens(tokenizer: Tokenizer, found: Texts) -> list[int]:
    """Tokens of each text in the sample's own tokenizer; of the continuation, where there is a prefix."""
    prefixes = found.prefixes or [""] * len(found.texts)
    rest = [text[len(prefix) :] for text, prefix in zip(found.texts, prefixes, strict=True)]
    return [len(ids) for ids in tokenizer.encode_batch(rest)]


@contextmanager
def progress(what: str) -> Iterator[OnDone]:
    """A bar on a terminal, nothing elsewhere."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        job = bar.add_task(f"scoring {what}", total=None)
        yield lambda done, total: bar.update(job, completed=done, total=total)


def show(judge: Judge, rows: list[dict[str, Any]], console: Console) -> None:
    """The table, with the interval of the first perplexity."""
    table = Table(title="Perplexity under a judge")
    table.add_column("file")
    columns = [column for column in COLUMNS if any(row.get(column[1]) is not None for row in rows)]
    for label, *_ in columns:
        table.add_column(label, justify="right")
    for row in rows:
        cells = []
        for _, name, shown in columns:
            value = row.get(name)
            cells.append("–" if value is None else shown.format(value))
            if name == "ppl" and value is not None:
                low, high = row["ppl_interval"]
                cells[-1] += f" [{low:.1f}, {high:.1f}]"
        table.add_row(Path(row["file"]).name, *cells)
    console.print(table)
    left = sum(row["unscored"] for row in rows)
    notes = [
        f"judge {judge.fingerprint}, {judge.precision}",
        "ppl: mean over texts of exp(mean NLL of a judge token), with its 95 % interval; corpus: of all texts as one; "
        "geometric: exp of the mean over texts; own token: ppl per token of --tokenizer",
    ]
    if left:
        notes.append(f"{left} texts without a token to score are left out")
    for note in notes:
        console.print(note, style="dim", highlight=False)
