"""`tsdfm report prefix`: continuations of held-out prefixes, of which the continuation alone is judged."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from tsdfm.errors import UserError
from tsdfm.report.bench import spread
from tsdfm.report.cells import Cell, written
from tsdfm.report.desk import Desk
from tsdfm.report.metrics.diversity import token_accuracy
from tsdfm.report.metrics.intervals import mean_interval
from tsdfm.report.metrics.mauve import mauve
from tsdfm.report.paper import PREFIX, QUOTES, SCALE_PREFIX
from tsdfm.report.rows import REAL, Plain, Row
from tsdfm.report.settings import PrefixSettings
from tsdfm.report.table import ENTROPY, METHOD, ORIGIN, PPL, SOURCE, STEPS, VALID, Column, Table
from tsdfm.report.walk import continue_rows
from tsdfm.samples.model import TextModel
from tsdfm.store.files import file_sha256
from tsdfm.store.manifest import NAME as MANIFEST
from tsdfm.tokens.rows import TokenRows

FEWEST = 16  # texts for which MAUVE means anything at all
UNSAMPLED = ("length", "temperature", "top_p", "jump", "precision", "seed", "hardware", "compass_calls", "guide",
             "tokens_per_s", "collapsed")  # fmt: skip


@dataclass(frozen=True)
class Prefixes:
    """Held-out rows [n, L] with the length of each prefix (the anchor included) and of each text."""

    tokens: TokenRows
    key: Plain  # what decides them
    rows: Tensor
    given: Tensor
    ends: Tensor

    @property
    def held(self) -> Tensor:
        """The positions that are given, [n, L]."""
        return torch.arange(self.rows.shape[1]) < self.given[:, None]

    @property
    def asked(self) -> Tensor:
        """The positions a continuation is compared at: the rest of the text and, if there is room, its end."""
        return ~self.held & (torch.arange(self.rows.shape[1]) <= self.ends[:, None])


def run(settings: PrefixSettings) -> Path:
    """Make the table; returns the path of its JSON."""
    desk = Desk("prefix", settings, judged=True)
    task = prefixes_of(TokenRows(desk.runs.tokens_or_refuse(), "valid"), settings, desk.measure.samples)
    stories = [VALID] if desk.measure.world else []
    last = [Column("accuracy", "token accuracy", format=".3f"), *stories, Column("mauve", "MAUVE", format=".3f")]
    long = (
        f"{settings.share:.0%} of each text" if settings.prefix_tokens is None else f"{settings.prefix_tokens} tokens"
    )
    title = f"Continuations of held-out prefixes ({long} given)"
    columns = [SOURCE, METHOD, ORIGIN, STEPS, PPL, ENTROPY, *last]
    table = Table("prefix", title, columns, quote=QUOTES["prefix"])
    key = {"method": REAL, "prefix": task.key, "samples": len(task.rows)}
    tokens, device = task.tokens, desk.measure.device
    held_out = Cell.of(key, task.rows, tokens, tokens.tokenizer, device, given=task.given)
    real = desk.judged(held_out)
    for model in desk.runs.models:
        made = desk.bench.model(model)
        for steps in settings.steps:
            key = {**desk.bench.key(model, steps), "samples": len(task.rows), "prefix": task.key}
            cell = desk.bench.cells.get(key, partial(continued, desk, made, task, key))
            row = desk.judged(cell).against(real)
            marks = ["entropy_bits", "ppl"] if row.collapsed else []
            known = {**desk.about(model), "marks": marks, "mauve": mauve_of(desk, cell, held_out)}
            found = fields_of(row, cell, task)
            table.add(**{**found, **known}, collapsed=row.collapsed)
            desk.say(f"{model.name}: {steps} steps, accuracy {found['accuracy']:.3f}")
    table.add(**{**fields_of(real, held_out, task), "source": "", "method": REAL, "origin": ""}, collapsed=False)
    for method, by_steps in PREFIX.items():
        known = {"source": "" if "B)" in method else "uniform", "method": method, "origin": SCALE_PREFIX}
        for at in (at for at in by_steps if at in settings.steps):
            quoted = dict(zip(("ppl", "entropy_bits", "mauve"), by_steps[at], strict=True))
            table.add(**known, paper=True, steps=at, **quoted)
    table.notes.append(
        "perplexity and entropy are of the continuation alone; accuracy: tokens equal to the held-out text's"
    )
    if desk.measure.world:
        table.notes.append("valid is said of whole stories, the prefix included")
    table.about = {"samples": len(task.rows)}
    return desk.finish(table)


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
    sha256 = file_sha256(tokens.folder / MANIFEST)[:16]
    key = {"tokens": sha256, "rows": "spread", "share": settings.share, "prefix_tokens": settings.prefix_tokens}
    return Prefixes(tokens, key, torch.stack(rows), torch.tensor(given), torch.tensor(ends))


def continued(desk: Desk, made: TextModel, task: Prefixes, key: Plain) -> Cell:
    """Continue every prefix."""
    asked, begin = desk.measure, time.perf_counter()
    how = made.jump(asked.jump), asked.temperature, asked.top_p
    found = continue_rows(made, task.rows, task.held, key["steps"], asked.seed, *how)
    seconds = time.perf_counter() - begin
    return Cell.of(key, found, made.velocity.spec, made.tokenizer, asked.device, given=task.given, seconds=seconds)


def fields_of(row: Row, cell: Cell, task: Prefixes) -> Plain:
    """What judges and the held-out continuation say of a cell."""
    accuracy = mean_interval(token_accuracy(torch.tensor(cell.tokens), task.rows, task.asked))
    plain = {name: value for name, value in row.plain().items() if name not in UNSAMPLED and value is not None}
    return {**plain, "accuracy": accuracy.value, "accuracy_interval": accuracy.interval, "texts": cell.texts[:2]}


def mauve_of(desk: Desk, cell: Cell, held_out: Cell) -> float | None:
    """MAUVE of the continuations and the held-out ones, by the features of the first judge that is a network."""
    judge = next(iter(desk.bench.networks()), None)
    sets = [[t[len(p) :] for t, p in zip(c.texts, c.prefixes or [], strict=True)] for c in (cell, held_out)]
    sets = [[text for text in texts if text.strip()] for texts in sets]
    if judge is None or min(map(len, sets)) < FEWEST:
        return None
    return mauve(judge.features(sets[0]), judge.features(sets[1]))
