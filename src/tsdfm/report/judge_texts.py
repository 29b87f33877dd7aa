"""`tsdfm judge score`: files of texts before a judge, as a table and as JSON. (Here rather than with the judges, since
perplexities and their intervals are the report's.)"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from tsdfm.judges import Judge, judge_from
from tsdfm.judges.settings import JudgeScoreSettings
from tsdfm.judges.texts import Texts, read_texts
from tsdfm.metrics.perplexity import judge_scores
from tsdfm.report.bench import scores_of
from tsdfm.report.rows import Plain, estimate, plain
from tsdfm.report.summary import with_interval
from tsdfm.report.table import Column, Table
from tsdfm.store.files import write_json
from tsdfm.tokens.tokenizer import Tokenizer, load_tokenizer

COLUMNS = [
    Column("file", "file", "left"),
    Column("samples", "texts", format="d"),
    Column("ppl_text", "ppl"),
    Column("ppl_corpus", "corpus", format=".1f"),
    Column("ppl_geometric", "geometric", format=".1f"),
    Column("ppl_median", "median", format=".1f"),
    Column("ppl_own", "own token", format=".1f"),
    Column("bits_per_char", "bits/char", format=".3f"),
    Column("next_token_accuracy", "next token", format=".1%"),
]


def run(settings: JudgeScoreSettings) -> list[Plain]:
    """Score each file, print a row for it and write everything if asked."""
    files = {path: read_texts(path, settings.limit) for path in settings.texts}  # all are read before a model is
    tokenizer = load_tokenizer(settings.tokenizer) if settings.tokenizer is not None else None
    judge = judge_from(settings.judge, settings.device, settings.precision, settings.batch)
    cache = settings.cache or (settings.out.with_suffix(".scores.jsonl") if settings.out is not None else None)
    rows, scores = [], {}
    for path, found in files.items():
        scores[str(path)] = scores_of(judge, found.texts, found.prefixes, cache, f"scoring {path.name}")
        own = own_tokens(tokenizer, found) if tokenizer is not None else None
        rows.append({"file": str(path), "samples": len(found.texts), **plain(judge_scores(scores[str(path)], own))})
    if settings.out is not None:
        every = {name: [asdict(score) for score in one] for name, one in scores.items()}
        about = {"judge": judge.fingerprint, "precision": judge.precision}
        write_json(settings.out, {**about, "rows": rows, "scores": every})
    table_of(judge, rows).show(Console(width=120))
    return rows


def own_tokens(tokenizer: Tokenizer, found: Texts) -> list[int]:
    """Tokens of each text in the sample's own tokenizer; of the continuation, where there is a prefix."""
    prefixes = found.prefixes or [""] * len(found.texts)
    rest = [text[len(prefix) :] for text, prefix in zip(found.texts, prefixes, strict=True)]
    return [len(ids) for ids in tokenizer.encode_batch(rest)]


def table_of(judge: Judge, rows: list[Plain]) -> Table:
    """The rows, with the interval of the first perplexity."""
    table = Table("scores", "Perplexity under a judge", [])
    for row in rows:
        text = with_interval(estimate(row, "ppl"), ".1f")
        table.add(**{**row, "file": Path(row["file"]).name}, ppl_text=text)
    table.columns = [c for c in COLUMNS if any(row.get(c.name) is not None for row in table.rows)]
    left = sum(row["unscored"] for row in rows)
    table.notes = [
        f"judge {judge.fingerprint}, {judge.precision}",
        "ppl: mean over texts of exp(mean NLL of a judge token), with its 95 % interval; corpus: of all texts as one; "
        "geometric: exp of the mean over texts; own token: ppl per token of --tokenizer",
        *([f"{left} texts without a token to score are left out"] if left else []),
    ]
    return table
