"""`tsdfm report prefix`: continuations of held-out prefixes, of which the continuation alone is judged."""

from __future__ import annotations

import torch
from torch import Tensor

from tsdfm.errors import UserError
from tsdfm.metrics.intervals import mean_interval
from tsdfm.report.bench import spread
from tsdfm.report.cells import Cell, Prefixes, written
from tsdfm.report.desk import Desk
from tsdfm.report.rows import REAL, Plain, Row
from tsdfm.report.settings import PrefixSettings
from tsdfm.report.table import ENTROPY, METHOD, ORIGIN, PPL, SOURCE, STEPS, VALID, Column, Table
from tsdfm.store.manifest import input_sha256
from tsdfm.tokens.rows import TokenRows

UNSAMPLED = ("length", "temperature", "top_p", "jump", "precision", "seed", "hardware", "compass_calls", "guide",
             "tokens_per_s", "collapsed")  # fmt: skip


def run(desk: Desk, settings: PrefixSettings) -> Table:
    """Make the table."""
    tokens, asked = TokenRows(desk.runs.tokens_or_refuse(), "valid"), desk.asked
    task = prefixes_of(tokens, settings, asked.samples)
    long = (
        f"{settings.share:.0%} of each text" if settings.prefix_tokens is None else f"{settings.prefix_tokens} tokens"
    )
    last = [VALID] if asked.world else []
    last = [Column("accuracy", "token accuracy", format=".3f"), *last, Column("mauve", "MAUVE", format=".3f")]
    columns = [SOURCE, METHOD, ORIGIN, STEPS, PPL, ENTROPY, *last]
    title = f"Continuations of held-out prefixes ({long} given)"
    table = desk.table(title, columns)
    key = {"method": REAL, "samples": len(task.rows), "prefix": task.key}
    held_out = Cell.of(key, task.rows, tokens.anchor, tokens.tokenizer, asked.device, given=task.given)
    real, wanted = desk.judged(held_out), written_after(held_out)

    for model in desk.runs.models:
        for steps in settings.steps:
            cell = desk.cell(model, steps, prefixes=task)
            row = desk.judged(cell).against(real)
            found = fields_of(row, cell, task)
            known = {**desk.about(model), "marks": row.marks, "mauve": desk.mauve(written_after(cell), wanted)}
            table.add(**{**found, **known}, collapsed=row.collapsed)
            desk.say(f"{model.name}: {steps} steps, accuracy {found['accuracy']:.3f}")
    table.add(**{**fields_of(real, held_out, task), "source": "", "method": REAL, "origin": ""}, collapsed=False)
    table.rows += desk.quote.rows(steps=settings.steps)
    table.notes.append(
        "perplexity and entropy are of the continuation alone; accuracy: tokens equal to the held-out text's"
    )
    if asked.world:
        table.notes.append("valid is said of whole stories, the prefix included")
    table.about = {"samples": len(task.rows)}
    return table


def prefixes_of(tokens: TokenRows, settings: PrefixSettings, samples: int) -> Prefixes:
    """Held-out rows that are longer than their prefix, evenly spread over the split as far as that goes."""
    order = spread(len(tokens), samples)
    others = set(range(len(tokens))).difference(order)
    found = list[tuple[int, Tensor, int, int]]()
    for i in (*order, *sorted(others)):
        if len(found) == samples:
            break
        row = torch.from_numpy(tokens[i].astype("int64"))
        length = len(written(row[tokens.anchor :], tokens.end_of_text))
        count = settings.prefix_tokens or max(1, int(settings.share * length))
        if count < length:
            found.append((i, row, tokens.anchor + count, tokens.anchor + length))
    if not found:
        raise UserError("no held-out text is longer than the prefix: give fewer --prefix-tokens")
    _, rows, given, ends = zip(*sorted(found, key=lambda one: one[0]), strict=True)
    sha256 = input_sha256(tokens.folder)[:16]
    key = {"tokens": sha256, "rows": "spread", "share": settings.share, "prefix_tokens": settings.prefix_tokens}
    return Prefixes(key, torch.stack(rows), torch.tensor(given), torch.tensor(ends))


def fields_of(row: Row, cell: Cell, task: Prefixes) -> Plain:
    """What judges and the held-out continuation say of a cell."""
    accuracy = mean_interval(task.accuracy(cell))
    plain = {name: value for name, value in row.plain().items() if name not in UNSAMPLED and value is not None}
    return {**plain, "accuracy": accuracy.value, "accuracy_interval": accuracy.interval, "texts": cell.texts[:2]}


def written_after(cell: Cell) -> list[str]:
    """The continuations of a cell that are not empty."""
    return [text for text in cell.continuations() if text.strip()]
