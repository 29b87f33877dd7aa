"""`tsdfm report prefix`: continuations of held-out prefixes, of which the continuation alone is judged."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tsdfm.errors import UserError
from tsdfm.judges.causal import CausalJudge
from tsdfm.report.cells import Cell, written
from tsdfm.report.desk import Desk, size
from tsdfm.report.hardware import hardware
from tsdfm.report.measure import COLLAPSE, REAL, key_of, spread
from tsdfm.report.metrics import mauve, mean_interval, token_accuracy
from tsdfm.report.paper import PREFIX
from tsdfm.report.runs import Run
from tsdfm.report.settings import PrefixSettings
from tsdfm.report.table import Column, Table
from tsdfm.report.walk import continue_rows
from tsdfm.samples.model import TextModel
from tsdfm.store.files import file_sha256
from tsdfm.store.manifest import NAME as MANIFEST
from tsdfm.tokens.rows import TokenRows

PAPER = "paper, 512 of 1 024 tokens, GPT-2 judge"
FEWEST = 16  # texts for which MAUVE means anything at all


@dataclass(frozen=True)
class Task:
    """Held-out rows [n, L] with the length of each prefix (the anchor included) and of each text."""

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
    desk = Desk("prefix", settings)
    desk.need_judge()
    tokens = TokenRows(desk.found.tokens_or_refuse(), "valid")
    task = task_of(tokens, settings, desk.measure.samples)
    table = Table("prefix", f"Continuations of held-out prefixes ({said(settings)})", columns(desk))
    real, held_out = real_row(desk, tokens, task, settings)
    for model in desk.found.models:
        for steps in settings.steps:
            row = row_of(desk, model, tokens, task, steps, settings, held_out)
            row["collapsed"] = row["entropy_bits"] < real["entropy_bits"] - COLLAPSE
            table.add(**row, marks=["entropy_bits", "ppl"] if row["collapsed"] else [])
    table.rows += [real, *paper_rows(settings.steps)]
    table.notes.append(
        "perplexity and entropy are of the continuation alone; accuracy: tokens equal to the held-out text's"
    )
    if desk.measure.world:
        table.notes.append("valid is said of whole stories, the prefix included")
    table.paper = {"label": "tab:dlm_comparison", "scale": PAPER, "figures": PREFIX}
    table.about = {"samples": len(task.rows)}
    return desk.finish(table)


def columns(desk: Desk) -> list[Column]:
    """What is shown of a continuation."""
    stories = [Column("valid", "valid stories", format=".3f")] if desk.measure.world else []
    return [
        Column("source", "source", "left"),
        Column("method", "method", "left"),
        Column("origin", "from", "left"),
        Column("steps", "steps"),
        Column("ppl", "perplexity", format=".2f"),
        Column("entropy_bits", "entropy (bits)", format=".2f"),
        Column("accuracy", "token accuracy", format=".3f"),
        *stories,
        Column("mauve", "MAUVE", format=".3f"),
    ]


def said(settings: PrefixSettings) -> str:
    """How long prefixes are."""
    if settings.prefix_tokens is not None:
        return f"{settings.prefix_tokens} tokens given"
    return f"{settings.share:.0%} of each text given"


def task_of(tokens: TokenRows, settings: PrefixSettings, samples: int) -> Task:
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
    found.sort(key=lambda one: one[0])
    _, rows, given, ends = zip(*found, strict=True)
    return Task(torch.stack(rows), torch.tensor(given), torch.tensor(ends))


def row_of(
    desk: Desk, model: Run, tokens: TokenRows, task: Task, steps: int, settings: PrefixSettings, held_out: Cell
) -> dict[str, Any]:
    """One model at one step count."""
    made = desk.model(model)
    key = {**key_of(desk.measure, made, steps, None), "samples": len(task.rows), "prefix": prefix_key(tokens, settings)}
    cell = desk.bench.cells.get(key, lambda: make_cell(desk, made, task, steps, key))
    row = {"source": model.source, "method": desk.label(model), "run": model.name, "steps": steps, "nfe": cell.nfe}
    row |= {"origin": f"ours, {size(model.parameters())}", "checkpoint": key["checkpoint"]}
    row |= scored(desk, cell, task) | {"mauve": mauve_of(desk, cell, held_out)}
    desk.said.print(f"{model.name}: {steps} steps, accuracy {row['accuracy']:.3f}", highlight=False)
    return row


def scored(desk: Desk, cell: Cell, task: Task) -> dict[str, Any]:
    """What judges and the held-out continuation say of a cell."""
    right = token_accuracy(torch.tensor(cell.tokens), task.rows, task.asked)
    value, low, high = mean_interval(right)
    fields = desk.bench.fields(cell)
    desk.note_judges(fields)
    return {**fields, "accuracy": value, "accuracy_interval": [low, high], "texts": cell.texts[:2]}


def prefix_key(tokens: TokenRows, settings: PrefixSettings) -> dict[str, Any]:
    """What decides the prefixes."""
    sha256 = file_sha256(tokens.folder / MANIFEST)[:16]
    return {"tokens": sha256, "rows": "spread", "share": settings.share, "prefix_tokens": settings.prefix_tokens}


def make_cell(desk: Desk, made: TextModel, task: Task, steps: int, key: dict[str, Any]) -> Cell:
    """Continue every prefix."""
    warm, begin = desk.measure, time.perf_counter()
    jump = made.jump(warm.jump)
    found = continue_rows(made, task.rows, task.held, steps, warm.seed, jump, warm.temperature, warm.top_p)
    seconds = time.perf_counter() - begin
    return as_cell(made.velocity.spec, made.tokenizer, found, task, key, steps, seconds, made.method, desk)


def as_cell(
    kind: Any, tokenizer: Any, found: Tensor, task: Task, key: dict[str, Any], steps: int | None, seconds: float,
    method: str, desk: Desk,
) -> Cell:  # fmt: skip
    """Rows as a cell, with the texts of their prefixes. `kind` has the rows' length and anchor."""
    end = " ¶ " if kind.anchor else "\n\n"
    texts, prefixes = [], []
    for row, given in zip(found, task.given.tolist(), strict=True):
        kept = written(row[kind.anchor :], tokenizer.end_of_text) if kind.anchor else row
        text = tokenizer.decode(kept, end=end)
        prefix = tokenizer.decode(row[kind.anchor : given], end=end)
        # a prefix may end inside a character: what both have in common is the prefix that can be read
        prefixes.append(shared_start(text, prefix))
        texts.append(text)
    return Cell(
        key=key,
        method=method,
        source=getattr(kind, "source", None),
        steps=steps,
        nfe=steps,
        length=kind.length,
        anchor=kind.anchor,
        end_of_text=tokenizer.end_of_text,
        seconds=seconds,
        hardware=hardware(desk.settings.device),
        texts=texts,
        tokens=found.tolist(),
        prefixes=prefixes,
        given=task.given.tolist(),
    )


def shared_start(one: str, two: str) -> str:
    """The longest beginning that both texts have."""
    differ = (i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b)
    return one[: next(differ, min(len(one), len(two)))]


def mauve_of(desk: Desk, cell: Cell, held_out: Cell) -> float | None:
    """MAUVE of the continuations and the held-out ones, by the features of the first judge that is a network."""
    judge = next((judge for judge in desk.bench.judges() if isinstance(judge, CausalJudge)), None)
    sets = [[t[len(p) :] for t, p in zip(c.texts, c.prefixes or [], strict=True)] for c in (cell, held_out)]
    sets = [[text for text in texts if text.strip()] for texts in sets]
    if judge is None or min(map(len, sets)) < FEWEST:
        return None
    return mauve(judge.features(sets[0]), judge.features(sets[1]))


def real_row(desk: Desk, tokens: TokenRows, task: Task, settings: PrefixSettings) -> tuple[dict[str, Any], Cell]:
    """The held-out continuations themselves: the target, as a row and as a cell."""
    key = {"method": REAL, "prefix": prefix_key(tokens, settings), "samples": len(task.rows)}
    cell = as_cell(tokens, tokens.tokenizer, task.rows, task, key, None, 0.0, REAL, desk)
    return {"source": "", "method": REAL, "origin": "", **scored(desk, cell, task), "collapsed": False}, cell


def paper_rows(steps: tuple[int, ...]) -> list[dict[str, Any]]:
    """The paper's rows of these step counts."""
    return [
        {"source": "uniform" if "B)" not in method else "", "method": method, "origin": PAPER, "paper": True}
        | {"steps": at, "ppl": ppl, "entropy_bits": entropy, "mauve": mauve}
        for method, by_steps in PREFIX.items()
        for at, (ppl, entropy, mauve) in by_steps.items()
        if at in steps
    ]
