"""The settings of measuring."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tsdfm.distil.settings import NavigateSettings, PolicyName
from tsdfm.errors import UserError
from tsdfm.ranges import SEED
from tsdfm.samples.defaults import QUICK, How
from tsdfm.settings import ModelPath, Name, OutFile, Settings, option, required
from tsdfm.store.defaults import JUMP

if TYPE_CHECKING:
    from tsdfm.report.runs import TrainedRun

Definition = Literal["paper", "geometric"]
Counts = tuple[int, ...]
Floats = tuple[float, ...]
STEPS: dict[str, Any] = {"low": 1, "high": 10**6}
MANY = "step counts of a many-step model; empty is `steps`"
INSTEAD = "(a blind student where there is no such run)"
DEFINITION = "perplexity of several texts: the mean of theirs, or exp of their mean log, which one bad text moves less"
BLIND = "temperatures of a sweep without guidance, to compare guided texts with at their entropy; empty is none"


class Listed(Settings):
    """Refuses empty lists of step counts and temperatures, before anything is sampled; some may be left empty."""

    def __post_init__(self) -> None:
        super().__post_init__()
        usual = {field.name: field.default for field in fields(self)}  # type: ignore[arg-type]
        for name in ("steps", "temperatures"):
            if usual.get(name) and getattr(self, name) == ():
                raise UserError(f"{name} takes at least one value")


class Stepped(Listed):
    """Has step counts, and a list of its own for many-step models."""

    steps: Counts
    teacher_steps: Counts

    def steps_of(self, run: TrainedRun) -> Counts:
        """The step counts of a run: a many-step model has a list of its own."""
        return (self.teacher_steps or self.steps) if run.many_step else self.steps


@dataclass(frozen=True, kw_only=True)
class MeasureSettings(Stepped):
    """What to sample and how to judge it."""

    steps: Counts = option((4, 8, 16, 32), "step counts", **STEPS)
    teacher_steps: Counts = option((4, 8, 16, 32, 256), MANY, **STEPS)
    samples: int = option(256, "texts for each step count", low=1)
    seed: int = option(0, "seed of the sampling", **SEED)
    temperature: float = option(1.0, "sampling temperature", low=0)
    top_p: float = option(1.0, "keep the most likely tokens up to this share of the probability", above=0, high=1)
    jump: str = option("auto", JUMP)
    world: str | None = option("small", "story world whose exact judge reads the texts: full or small; '' is none")
    judges: tuple[str, ...] = option((), "more judges, as `tsdfm judge score` takes them; may be given many times")
    show: int = option(2, "texts to keep as examples in each row", low=0)
    frontier: bool = option(False, "also sweep the temperature, for perplexity at matched entropy")
    temperatures: Floats = option((0.7, 0.8, 0.9, 1.0, 1.1), "temperatures of the sweep", above=0)
    frontier_steps: Counts = option((), "step counts of the sweep; empty is `steps`", **STEPS)
    control: str = option("control", f"the method a frontier is compared with {INSTEAD}")
    definition: Definition = option("paper", f"for the frontier, {DEFINITION}")
    device: str = option("auto", "auto, cpu, cuda or cuda:N")
    quick: How = option("auto", QUICK)


@dataclass(frozen=True, kw_only=True)
class ReportSettings(Listed):
    """Which runs a table is about, and how its texts are made and judged. What is none is as the runs were measured."""

    runs: tuple[ModelPath, ...] = required("a pipeline's folder, run folders, or a shipped model's name; RUN@JUMP")
    also: tuple[str, ...] = option(
        (), "some of the runs once more by another jump, METHOD@JUMP; may be given many times"
    )
    out: Path | None = option(None, "folder of the report; none is `report` beside the runs")
    tokens: Path | None = option(None, "the tokens folder, for held-out text; none finds it")
    samples: int | None = option(None, "texts for each figure; none is what the runs were measured with, or 64", low=1)
    seed: int | None = option(None, "seed of the sampling; none is what the runs were measured with, or 0", **SEED)
    temperature: float = option(1.0, "sampling temperature", low=0)
    top_p: float = option(1.0, "keep the most likely tokens up to this share of the probability", above=0, high=1)
    jump: str = option("auto", JUMP)
    world: str | None = option(None, "story world that judges: full or small; none finds it, '' is no story world")
    judges: tuple[str, ...] = option((), "more judges, as `tsdfm judge score` takes them; may be given many times")
    device: str = option("auto", "auto, cpu, cuda or cuda:N")
    quick: How = option("auto", QUICK)
    verbose: bool = option(False, "print whole tables and every cell; without it, what fits on a screen")


@dataclass(frozen=True, kw_only=True)
class MeasureRunsSettings(ReportSettings):
    """Measure runs: sample each at several step counts and write `metrics.json`."""

    steps: Counts = option((4, 8, 16, 32), "step counts", **STEPS)
    teacher_steps: Counts = option((4, 8, 16, 32, 256), MANY, **STEPS)
    show: int = option(2, "texts to keep as examples in each row", low=0)
    frontier: bool = option(False, "also sweep the temperature")


@dataclass(frozen=True, kw_only=True)
class MainSettings(ReportSettings):
    """Perplexity and entropy of every method at every step count, as the paper's main table."""

    steps: Counts = option((), "step counts; empty is what the runs were measured with, or 4,8,16,32", **STEPS)
    teacher_steps: Counts = option((), "step counts of a many-step model; empty is as for `steps`, and 256", **STEPS)


@dataclass(frozen=True, kw_only=True)
class FrontierSettings(ReportSettings):
    """Perplexity against entropy over a sweep of the temperature, and perplexity at matched entropy."""

    steps: Counts = option((8,), "step counts", **STEPS)
    temperatures: Floats = option((0.7, 0.8, 0.9, 1.0, 1.1), "sampling temperatures of the sweep", above=0)
    control: str = option("control", f"the method the others are compared with {INSTEAD}")
    definition: Definition = option("paper", DEFINITION)
    draws: int = option(400, "bootstrap draws of the intervals", low=2)
    unigram: str = option("", "the method (control, say) that is also swept with a unigram bias of its logits")
    against: tuple[Name, ...] = option(
        ("fs-dfm", "control-time", "control-probabilities", "control-forward", "ts-random", "ts-longer", "ts-dfm"),
        "methods that each is compared with too, where they are",
    )


@dataclass(frozen=True, kw_only=True)
class NeighboursSettings(ReportSettings):
    """Methods beside each other at a few steps, as the paper's few-step table; RUN@JUMP is a run by another jump."""

    steps: Counts = option((8, 16), "step counts; the figure and the reference curve are of the first", **STEPS)
    reference: str = option("", "the run, or the method as tables call it, of the reference curve; empty is the first")
    temperatures: Floats = option((0.7, 0.8, 0.9, 1.0, 1.1, 1.2), "sampling temperatures of the curves", above=0)
    curves: bool = option(True, "sweep the temperature of every run, for the figure; off: of the reference alone")


@dataclass(frozen=True, kw_only=True)
class ThresholdSettings(ReportSettings):
    """Students by τ and by what they started from, as the paper's threshold table."""

    steps: Counts = option((8, 16), "step counts", **STEPS)


@dataclass(frozen=True, kw_only=True)
class GuidedSettings(ReportSettings):
    """What guided generation needs."""

    method: str = option("fs-dfm", "the student to be guided (any student, or a teacher, where there is no such run)")
    samples: int | None = option(
        None, "texts for each figure; none is as the runs were measured, but at most 32", low=1
    )
    compass: ModelPath | None = option(None, "the compass; none finds that of the model's source")
    navigate: NavigateSettings = option(NavigateSettings(), "navigation")


@dataclass(frozen=True, kw_only=True)
class SweptSettings(GuidedSettings):
    """What guided texts are compared with."""

    temperatures: Floats = option((), BLIND, above=0)


@dataclass(frozen=True, kw_only=True)
class CandidatesSettings(SweptSettings):
    """Guided generation with K candidates, as the paper's table of K."""

    steps: int = option(8, "network passes", **STEPS)
    k: tuple[int, ...] = option((1, 2, 3, 5, 8), "numbers of candidates", low=1, high=2**16)
    policy: PolicyName = option("sequence-to-token", "the policy")


@dataclass(frozen=True, kw_only=True)
class PolicySettings(SweptSettings):
    """Generation without guidance and with each policy, as the paper's policy table."""

    steps: Counts = option((8, 16), "step counts (the paper has 8, 16, 32 and 64)", **STEPS)


@dataclass(frozen=True, kw_only=True)
class RefinementSettings(GuidedSettings):
    """What the token phase does, at generation and in training, as the paper's refinement table."""

    steps: Counts = option((8, 16), "step counts (the paper has 8, 16 and 64)", **STEPS)


@dataclass(frozen=True, kw_only=True)
class DiversitySettings(ReportSettings):
    """How much completions of one midpoint differ, as the paper's table of midpoint diversity."""

    method: str = option("ts-dfm", "the student (any student, or a teacher, where there is no such run)")
    steps: Counts = option((8,), "step counts of a whole generation (the paper has 8 and 64)", **STEPS)
    times: Floats = option((0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9), "times of the midpoint", low=0, below=1)
    midpoints: int = option(8, "midpoints of each time (the paper has 48)", low=1)
    completions: int = option(10, "completions of each midpoint", low=2)


@dataclass(frozen=True, kw_only=True)
class CompassSettings(ReportSettings):
    """The validation of each compass, as the paper's appendix."""


@dataclass(frozen=True, kw_only=True)
class OverheadSettings(ReportSettings):
    """Time of a training step of every student, as the paper's table of overhead."""

    benchmarks: Path | None = option(None, "also a JSON file of `python -m benchmarks`, measured in quiet")


@dataclass(frozen=True, kw_only=True)
class PrefixSettings(ReportSettings):
    """Continuations of held-out prefixes, of which the continuation alone is judged."""

    steps: Counts = option((4, 8, 16), "step counts", **STEPS)
    share: float = option(0.25, "how much of a held-out text is given", above=0, below=1)
    prefix_tokens: int | None = option(None, "give so many tokens of it instead", low=1)


@dataclass(frozen=True, kw_only=True)
class AnswersSettings(ReportSettings, Stepped):
    """Problems solved with k answers by steps, as the paper's table of GSM8K, beside what chance gives."""

    steps: Counts = option((4, 8), "step counts", **STEPS)
    teacher_steps: Counts = option((4, 8, 32, 256), MANY, **STEPS)
    k: tuple[int, ...] = option((1, 8, 16, 32), "answers of which one has to be right", low=1)
    n: int = option(32, "answers of each problem, from which pass@k is estimated", low=1, high=2**16)
    problems: int | None = option(
        None, "held-out problems, evenly spread, over sums where they are of such; none: all", low=1
    )
    file: Path | None = option(None, "a .jsonl, .csv or .parquet file of problems, in the place of the held-out ones")
    prompt: str = option("question", "the field of that file that holds the problem")
    field: str = option("answer", "the field that holds the answer")
    of: str = option("ts-dfm", "the method that is compared with others, problem by problem")
    against: tuple[Name, ...] = option(("teacher", "fs-dfm", "control", "ts-random"), "those others, where they are")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples is not None:
            raise UserError("--samples is not for answers: --n says how many of each problem, --problems of how many")
        if not self.k or max(self.k) > self.n:
            raise UserError(f"pass@{max(self.k, default=1)} needs as many answers of each problem: raise n, or lower k")


@dataclass(frozen=True, kw_only=True)
class ScalingSettings(ReportSettings):
    """Runs of several sizes beside each other, as the paper's scaling table."""

    steps: Counts = option((4, 8, 16, 32), "step counts", **STEPS)


@dataclass(frozen=True, kw_only=True)
class MauveSettings(ReportSettings, Stepped):
    """How near texts come to held-out text, as features of a judge see them."""

    steps: Counts = option((4, 8, 16, 32), "step counts", **STEPS)
    teacher_steps: Counts = option((), MANY, **STEPS)
    clusters: int | None = option(None, "clusters of the features; none is a tenth of the texts", low=2)
    draws: int = option(200, "bootstrap draws of the intervals", low=2)


@dataclass(frozen=True, kw_only=True)
class SeedsSettings(Settings):
    """One table of several, the same table made with other seeds: means, and half their range."""

    tables: tuple[Path, ...] = required("the tables' JSON files, or the folders of one report each")
    name: str = option("", "of the table, where folders are given, as in neighbours; empty: that of the files")
    out: Path = required("folder of the joined table")
    definition: Definition = option("paper", f"for the curves of several frontiers, {DEFINITION}")
    steps: Counts = option((), "step counts of their figures; empty is all", **STEPS)
    within: float | None = option(None, "draw only points within so many bits of held-out text", above=0)
    verbose: bool = option(False, "print the whole table; without it, its first rows")


@dataclass(frozen=True, kw_only=True)
class PageSettings(Settings):
    """Write the report of a pipeline's folder as one HTML file, or as one page of Markdown."""

    folder: Path = required("pipeline folder: what `tsdfm pipeline --out` made")
    markdown: OutFile | None = option(
        None, "write this Markdown file instead: settings, tables and where they come from"
    )
    open: bool = option(False, "open the page in the browser")
