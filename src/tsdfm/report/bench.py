"""Measuring cells: sample a run (or read held-out text), have every judge read the texts, sum up what they say.

    bench = Bench(MeasureSettings(samples=64), Cells(Path("report/cells")))
    row = bench.row(run, bench.cell(run, steps=8))

Nothing is sampled or scored twice: cells lie on disk, and so do the scores of judges that are networks.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path

import torch
from torch import Tensor

from tsdfm.corpus.story_judge import judge as read_story
from tsdfm.corpus.world import World, world_named
from tsdfm.judges import Judge
from tsdfm.judges.base import Score
from tsdfm.judges.cache import book_at
from tsdfm.judges.causal import CausalJudge
from tsdfm.judges.load import judge_named
from tsdfm.judges.world import WorldJudge
from tsdfm.metrics.intervals import Estimate, mean_interval, wilson
from tsdfm.metrics.mauve import FEWEST, mauve
from tsdfm.metrics.ngrams import TextStats, text_stats
from tsdfm.metrics.perplexity import judge_scores
from tsdfm.report.cells import Cell, Cells, Prefixes
from tsdfm.report.rows import REAL, Plain, Row, StoryScores
from tsdfm.report.runs import TrainedRun
from tsdfm.report.settings import MeasureSettings
from tsdfm.samples.guide import Guide
from tsdfm.samples.model import TextModel, load
from tsdfm.settings import to_dict
from tsdfm.store.manifest import input_sha256
from tsdfm.terminal import progress
from tsdfm.tokens.rows import TokenRows

SCORES = "scores.jsonl"
DRAW = "float32 weights, 53-bit uniforms"
_STATS: dict[bytes, TextStats] = {}


class Bench:
    """The judges of a measurement, loaded when first asked, and the cells they have already seen."""

    def __init__(self, asked: MeasureSettings, cells: Cells | None = None) -> None:
        self.asked = asked
        self.cells = cells or Cells()
        self.hardware: set[str] = set()  # what its cells were sampled on
        self._model: tuple[Path, TextModel] | None = None

    @cached_property
    def judges(self) -> list[Judge]:
        """The story world's judge, if there is one, and then the others."""
        world: list[Judge] = [WorldJudge(world_named(self.asked.world))] if self.asked.world else []
        others = (judge_named(spec, self.asked.device) for spec in self.asked.judges)
        return list({judge.fingerprint: judge for judge in (*world, *others)}.values())

    def judge_names(self) -> list[str]:
        """The fingerprints of the judges; the figures of the first stand in the rows themselves."""
        return [judge.fingerprint for judge in self.judges]

    def networks(self) -> list[CausalJudge]:
        """The judges that have features."""
        return [judge for judge in self.judges if isinstance(judge, CausalJudge)]

    def mauve(self, texts: Sequence[str], wanted: Sequence[str]) -> float | None:
        """MAUVE of texts against others by the features of the first network among the judges; none of too few."""
        judge = next(iter(self.networks()), None)
        if judge is None or min(len(texts), len(wanted)) < FEWEST:
            return None
        return mauve(features_of(judge, tuple(texts)), features_of(judge, tuple(wanted)))

    def model(self, run: TrainedRun) -> TextModel:
        """The run's model; the last one is kept, as tables go run by run."""
        if self._model is None or self._model[0] != run.path:
            self._model = (run.path, replace(load(run.path, self.asked.device), quick=self.asked.quick))
        return self._model[1]

    def cell(
        self,
        run: TrainedRun,
        steps: int,
        *,
        guide: Guide | None = None,
        temperature: float | None = None,
        bias: Tensor | None = None,
        seed: int | None = None,
        times: int = 1,
        prefixes: Prefixes | None = None,
    ) -> Cell:
        """The texts of a run at one step count: every table and figure is made of such cells.

        They may be of another temperature or seed, several times as many, guided, with a bias [V] of the logits, or
        continuations of `prefixes`, one of each.
        """
        made, asked, jump = self.model(run), self.asked, run.jump or self.asked.jump
        key = {  # everything that decides the texts
            "method": made.method,
            "source": made.velocity.spec.source,
            "steps": steps,
            "checkpoint": made.velocity.sha256[:16],
            "samples": len(prefixes.rows) if prefixes else times * asked.samples,
            "seed": asked.seed if seed is None else seed,
            "temperature": asked.temperature if temperature is None else temperature,
            "top_p": asked.top_p,
            "jump": made.velocity.spec.usual_jump() if jump == "auto" else jump,
            "precision": "bf16" if made.bf16 else "float32",
            "guide": guide_key(guide),
            **({} if made.never_noise is None else {"never_noise": made.never_noise}),
            **({"quick": asked.quick} if asked.quick == "compile" else {}),  # which rounds in other places
            **({} if bias is None else {"bias": bias_key(bias)}),
            **({} if prefixes is None else {"prefix": prefixes.key}),
        }
        found = self.cells.get(key, lambda: sample(made, key, guide, bias, prefixes))
        self.hardware.add(found.hardware)
        return found

    def row(self, run: TrainedRun, cell: Cell, *, name: str | None = None, guide: Guide | None = None) -> Row:
        """The row of a run's cell; `name` is what it calls the method."""
        return replace(
            self.judged(cell),
            method=name or run.method,
            guide=guide.policy if guide else None,
            draw=DRAW,
            run=replace(run, jump="").name,
            tokens_per_s=len(cell.texts) * cell.length / cell.seconds,
        )

    def target(self, tokens: Path) -> Row:
        """The row of held-out text, measured the same way."""
        rows = TokenRows(tokens, "valid")
        picks = spread(len(rows), self.asked.samples)
        key = {"method": REAL, "tokens": input_sha256(tokens)[:16], "samples": len(picks), "rows": "spread"}
        cell = self.cells.get(key, lambda: read_rows(rows, picks, key, self.asked.device))
        return replace(self.judged(cell), compass_calls=None)

    def judged(self, cell: Cell) -> Row:
        """A cell's texts before every judge."""
        rows = cell.rows()
        own = [len(row) for row in rows]
        story = judge_stories(cell.texts, world_named(self.asked.world)) if self.asked.world else None
        if story and cell.prefixes is not None:
            story = StoryScores(valid=story.valid, broken_rules=story.broken_rules)
        of_key = ("temperature", "top_p", "jump", "precision", "seed", "checkpoint")
        of_cell = ("method", "source", "steps", "nfe", "compass_calls", "length", "hardware")
        known: Plain = {name: cell.key.get(name) for name in of_key}
        known |= {name: getattr(cell, name) for name in of_cell}
        return Row(
            samples=len(cell.texts),
            text=stats_of(rows),
            judges={one.fingerprint: judge_scores(self.scores(cell, one), own) for one in self.judges},
            story=story,
            texts=tuple(cell.texts[: self.asked.show]),
            **known,
        )

    def scores(self, cell: Cell, judge: Judge) -> list[Score]:
        """A judge's scores of a cell; those of a network are kept beside the cells, as they cost time."""
        kept = None if isinstance(judge, WorldJudge) or self.cells.folder is None else self.cells.folder / SCORES
        return scores_of(judge, cell.texts, cell.prefixes, kept, f"{judge.name} reads")


def scores_of(
    judge: Judge, texts: Sequence[str], prefixes: Sequence[str] | None, kept: Path | None, what: str
) -> list[Score]:
    """A judge's scores of texts, by way of the file that keeps them if there is one; `what` stands beside the bar."""
    with progress(what) as on_done:
        if kept is None:
            return judge.score(texts, prefixes=prefixes, on_done=on_done)
        return book_at(kept).score(judge, texts, prefixes, on_done=on_done)


@lru_cache(maxsize=4)
def features_of(judge: CausalJudge, texts: tuple[str, ...]) -> Tensor:
    """A judge's features [n, D] of texts; the last are kept, as one set is compared with many."""
    return judge.features(texts)


def judge_stories(texts: Sequence[str], world: World) -> StoryScores:
    """Valid-story rate, perplexity and negative log-likelihood of stories, and which rules were broken.

    `ppl` is the mean over texts of exp(mean NLL of a word) under the ε-noisy world (finite for every text); `nll` is
    the mean NLL of a whole text under it; `nll_valid` is the exact one, over the valid stories alone.
    """
    verdicts = [read_story(text, world) for text in texts]
    valid = [v for v in verdicts if v.valid]
    broken = Counter(violation.rule for v in verdicts for violation in v.violations)
    return StoryScores(
        valid=Estimate(len(valid) / len(verdicts), *wilson(len(valid), len(verdicts))),
        ppl=mean_interval([v.perplexity for v in verdicts]),
        nll=sum(-v.noisy_log_likelihood for v in verdicts) / len(verdicts),
        nll_valid=sum(-v.log_likelihood for v in valid) / len(valid) if valid else None,
        broken_rules=dict(broken.most_common()),
    )


def sample(
    made: TextModel, key: Plain, guide: Guide | None, bias: Tensor | None, prefixes: Prefixes | None = None
) -> Cell:
    """Sample a cell."""
    asked = {name: key[name] for name in ("steps", "seed", "temperature", "top_p", "jump")}
    asked |= {} if prefixes is None else {"given": prefixes.given_rows()}
    with progress(f"{key['method']}, {key['source']}: {key['steps']} passes") as on_batch:
        found = made.sample(key["samples"], **asked, on_batch=on_batch, guide=guide, bias=bias)
    about: Plain = {"compass_calls": found.compass_calls, "navigation": dict(found.navigation), "nfe": found.nfe}
    place = made.velocity.spec.anchor, made.tokenizer, made.velocity.device
    given = None if prefixes is None else prefixes.given
    return Cell.of(key, found.tokens, *place, given=given, seconds=found.seconds, **about)


def read_rows(rows: TokenRows, picks: Sequence[int], key: Plain, device: str) -> Cell:
    """Held-out rows as a cell."""
    kept = torch.stack([torch.from_numpy(rows[i].astype("int64")) for i in picks])
    return Cell.of(key, kept, rows.anchor, rows.tokenizer, device)


def held_out(rows: TokenRows, samples: int) -> tuple[list[str], list[str]]:
    """Two sets of held-out texts, as many in each as a method's, or half of all there are: for MAUVE."""
    texts = read_rows(rows, spread(len(rows), 2 * min(samples, len(rows) // 2)), {}, "cpu").texts
    return texts[::2], texts[1::2]


def spread(rows: int, count: int) -> list[int]:
    """`count` rows evenly over all: row i·rows // count. Neighbours are often of one book, so the first will not do.

    >>> spread(10, 4)
    [0, 2, 5, 7]
    """
    count = min(count, rows)
    return [i * rows // count for i in range(count)]


def bias_key(bias: Tensor) -> str:
    """A fingerprint of a bias of the logits [V]: its numbers in float32."""
    return hashlib.sha256(bias.detach().float().cpu().numpy().tobytes()).hexdigest()[:16]


def guide_key(guide: Guide | None) -> Plain | None:
    """A guide as plain values: its policy, its settings and its compass's hash."""
    if guide is None:
        return None
    navigate = to_dict(guide.settings)
    if not guide.settings.blocks or guide.policy == "token":
        del navigate["blocks"]  # without effect; cells were kept before there was such a setting
    compass = getattr(guide.compass, "sha256", "")[:16] or None
    return {"policy": guide.policy, "compass": compass, "navigate": navigate}


def stats_of(rows: Sequence[Tensor]) -> TextStats:
    """`text_stats`, kept by the tokens: several tables show the same cell."""
    sizes = str([len(row) for row in rows]).encode()
    name = hashlib.sha256(sizes + b"".join(row.numpy().tobytes() for row in rows)).digest()
    if name not in _STATS:
        _STATS[name] = text_stats(rows)
    return _STATS[name]
