"""The settings of measuring."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tsdfm.distil.settings import NavigateSettings, PolicyName
from tsdfm.errors import UserError
from tsdfm.samples.defaults import JUMP
from tsdfm.settings import ModelPath, Name, option, required

if TYPE_CHECKING:
    from tsdfm.report.runs import TrainedRun

Definition = Literal["paper", "geometric"]
DEFINITION = "perplexity of several texts: the mean of theirs, or exp of their mean log, which one bad text moves less"
BLIND = "temperatures of a sweep without guidance, to compare guided texts with at their entropy; empty is none"


def check_lists(settings: Any) -> None:
    """Refuse step counts and temperatures that cannot be sampled, before anything is; some may be left empty."""
    usual = {field.name: field.default for field in fields(settings)}
    for name in ("steps", "temperatures"):
        if usual.get(name) and getattr(settings, name) == ():
            raise UserError(f"{name} takes at least one value")
    counts = [getattr(settings, name, ()) for name in ("steps", "teacher_steps", "frontier_steps")]
    if min((at for some in counts for at in (some if isinstance(some, tuple) else [some])), default=1) < 1:
        raise UserError("steps takes step counts of at least 1")
    if not all(0 < temperature < math.inf for temperature in getattr(settings, "temperatures", ())):
        raise UserError("temperatures of a sweep must be above 0, and finite")


@dataclass(frozen=True, kw_only=True)
class MeasureSettings:
    """What to sample and how to judge it."""

    steps: tuple[int, ...] = option((4, 8, 16, 32), "step counts")
    teacher_steps: tuple[int, ...] = option((4, 8, 16, 32, 256), "step counts of a many-step model; empty is `steps`")
    samples: int = option(256, "texts for each step count")
    seed: int = option(0, "seed of the sampling")
    temperature: float = option(1.0, "sampling temperature")
    top_p: float = option(1.0, "keep the most likely tokens up to this share of the probability")
    jump: str = option("auto", JUMP)
    world: str | None = option("small", "story world whose exact judge reads the texts: full or small; '' is none")
    judges: tuple[str, ...] = option((), "more judges, as `tsdfm judge score` takes them; may be given many times")
    show: int = option(2, "texts to keep as examples in each row")
    frontier: bool = option(False, "also sweep the temperature, for perplexity at matched entropy")
    temperatures: tuple[float, ...] = option((0.7, 0.8, 0.9, 1.0, 1.1), "temperatures of the sweep")
    frontier_steps: tuple[int, ...] = option((), "step counts of the sweep; empty is `steps`")
    control: str = option(
        "control", "the method a frontier is compared with (a blind student where there is no such run)"
    )
    definition: Definition = option("paper", f"for the frontier, {DEFINITION}")
    device: str = option("auto", "auto, cpu, cuda or cuda:N")

    def __post_init__(self) -> None:
        check_lists(self)
        if self.samples < 1 or self.show < 0 or not self.temperature >= 0:
            raise UserError("samples must be at least 1, and show and temperature may not be negative")

    def steps_of(self, run: TrainedRun) -> tuple[int, ...]:
        """The step counts of a run: a many-step model has a list of its own."""
        return (self.teacher_steps or self.steps) if run.many_step else self.steps


@dataclass(frozen=True, kw_only=True)
class ReportSettings:
    """Which runs a table is about, and how its texts are made and judged. What is none is as the runs were measured."""

    runs: tuple[ModelPath, ...] = required("a pipeline's folder, run folders, or a shipped model's name; RUN@JUMP")
    also: tuple[str, ...] = option(
        (), "some of the runs once more by another jump, METHOD@JUMP; may be given many times"
    )
    out: Path | None = option(None, "folder of the report; none is `report` beside the runs")
    tokens: Path | None = option(None, "the tokens folder, for held-out text; none finds it")
    samples: int | None = option(None, "texts for each figure; none is what the runs were measured with, or 64")
    seed: int | None = option(None, "seed of the sampling; none is what the runs were measured with, or 0")
    temperature: float = option(1.0, "sampling temperature")
    top_p: float = option(1.0, "keep the most likely tokens up to this share of the probability")
    jump: str = option("auto", JUMP)
    world: str | None = option(None, "story world that judges: full or small; none finds it, '' is no story world")
    judges: tuple[str, ...] = option((), "more judges, as `tsdfm judge score` takes them; may be given many times")
    device: str = option("auto", "auto, cpu, cuda or cuda:N")
    verbose: bool = option(False, "print whole tables and every cell; without it, what fits on a screen")

    def __post_init__(self) -> None:
        check_lists(self)
        if self.samples is not None and self.samples < 1:
            raise UserError(f"samples must be at least 1, not {self.samples}")


@dataclass(frozen=True, kw_only=True)
class MeasureRunsSettings(ReportSettings):
    """Measure runs: sample each at several step counts and write `metrics.json`."""

    steps: tuple[int, ...] = option((4, 8, 16, 32), "step counts")
    teacher_steps: tuple[int, ...] = option((4, 8, 16, 32, 256), "step counts of a many-step model; empty is `steps`")
    show: int = option(2, "texts to keep as examples in each row")
    frontier: bool = option(False, "also sweep the temperature")


@dataclass(frozen=True, kw_only=True)
class MainSettings(ReportSettings):
    """Perplexity and entropy of every method at every step count, as the paper's main table."""

    steps: tuple[int, ...] = option((), "step counts; empty is what the runs were measured with, or 4,8,16,32")
    teacher_steps: tuple[int, ...] = option((), "step counts of a many-step model; empty is as for `steps`, and 256")


@dataclass(frozen=True, kw_only=True)
class FrontierSettings(ReportSettings):
    """Perplexity against entropy over a sweep of the temperature, and perplexity at matched entropy."""

    steps: tuple[int, ...] = option((8,), "step counts")
    temperatures: tuple[float, ...] = option((0.7, 0.8, 0.9, 1.0, 1.1), "sampling temperatures of the sweep")
    control: str = option(
        "control", "the method the others are compared with (a blind student where there is no such run)"
    )
    definition: Definition = option("paper", DEFINITION)
    draws: int = option(400, "bootstrap draws of the intervals")
    unigram: str = option("", "the method (control, say) that is also swept with a unigram bias of its logits")
    against: tuple[Name, ...] = option(
        ("fs-dfm", "control-time", "control-probabilities", "control-forward", "ts-random", "ts-longer", "ts-dfm"),
        "methods that each is compared with too, where they are",
    )


@dataclass(frozen=True, kw_only=True)
class NeighboursSettings(ReportSettings):
    """Methods beside each other at a few steps, as the paper's few-step table; RUN@JUMP is a run by another jump."""

    steps: tuple[int, ...] = option((8, 16), "step counts; the figure and the reference curve are of the first")
    reference: str = option("", "the run, or the method as tables call it, of the reference curve; empty is the first")
    temperatures: tuple[float, ...] = option((0.7, 0.8, 0.9, 1.0, 1.1, 1.2), "sampling temperatures of the curves")
    curves: bool = option(True, "sweep the temperature of every run, for the figure; off: of the reference alone")


@dataclass(frozen=True, kw_only=True)
class ThresholdSettings(ReportSettings):
    """Students by τ and by what they started from, as the paper's threshold table."""

    steps: tuple[int, ...] = option((8, 16), "step counts")


@dataclass(frozen=True, kw_only=True)
class GuidedSettings(ReportSettings):
    """What guided generation needs."""

    method: str = option("fs-dfm", "the student to be guided (any student, or a teacher, where there is no such run)")
    samples: int | None = option(None, "texts for each figure; none is as the runs were measured, but at most 32")
    compass: ModelPath | None = option(None, "the compass; none finds that of the model's source")
    navigate: NavigateSettings = option(NavigateSettings(), "navigation")


@dataclass(frozen=True, kw_only=True)
class SweptSettings(GuidedSettings):
    """What guided texts are compared with."""

    temperatures: tuple[float, ...] = option((), BLIND)


@dataclass(frozen=True, kw_only=True)
class CandidatesSettings(SweptSettings):
    """Guided generation with K candidates, as the paper's table of K."""

    steps: int = option(8, "network passes")
    k: tuple[int, ...] = option((1, 2, 3, 5, 8), "numbers of candidates")
    policy: PolicyName = option("sequence-to-token", "the policy")


@dataclass(frozen=True, kw_only=True)
class PolicySettings(SweptSettings):
    """Generation without guidance and with each policy, as the paper's policy table."""

    steps: tuple[int, ...] = option((8, 16), "step counts (the paper has 8, 16, 32 and 64)")


@dataclass(frozen=True, kw_only=True)
class RefinementSettings(GuidedSettings):
    """What the token phase does, at generation and in training, as the paper's refinement table."""

    steps: tuple[int, ...] = option((8, 16), "step counts (the paper has 8, 16 and 64)")


@dataclass(frozen=True, kw_only=True)
class DiversitySettings(ReportSettings):
    """How much completions of one midpoint differ, as the paper's table of midpoint diversity."""

    method: str = option("ts-dfm", "the student (any student, or a teacher, where there is no such run)")
    steps: tuple[int, ...] = option((8,), "step counts of a whole generation (the paper has 8 and 64)")
    times: tuple[float, ...] = option((0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9), "times of the midpoint")
    midpoints: int = option(8, "midpoints of each time (the paper has 48)")
    completions: int = option(10, "completions of each midpoint")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.midpoints < 1 or self.completions < 2:
            raise UserError("diversity needs at least 1 midpoint and 2 completions of each")
        if not all(0 <= t < 1 for t in self.times):
            raise UserError("times of a midpoint lie in 0 to 1, without 1")


@dataclass(frozen=True, kw_only=True)
class CompassTableSettings(ReportSettings):
    """The validation of each compass, as the paper's appendix."""


@dataclass(frozen=True, kw_only=True)
class OverheadSettings(ReportSettings):
    """Time of a training step of every student, as the paper's table of overhead."""

    benchmarks: Path | None = option(None, "also a JSON file of `python -m benchmarks`, measured in quiet")


@dataclass(frozen=True, kw_only=True)
class PrefixSettings(ReportSettings):
    """Continuations of held-out prefixes, of which the continuation alone is judged."""

    steps: tuple[int, ...] = option((4, 8, 16), "step counts")
    share: float = option(0.25, "how much of a held-out text is given")
    prefix_tokens: int | None = option(None, "give so many tokens of it instead")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share < 1 or (self.prefix_tokens is not None and self.prefix_tokens < 1):
            raise UserError("share lies between 0 and 1, and prefix_tokens is at least 1")


@dataclass(frozen=True, kw_only=True)
class ScalingSettings(ReportSettings):
    """Runs of several sizes beside each other, as the paper's scaling table."""

    steps: tuple[int, ...] = option((4, 8, 16, 32), "step counts")


@dataclass(frozen=True, kw_only=True)
class MauveSettings(ReportSettings):
    """How near texts come to held-out text, as features of a judge see them."""

    steps: tuple[int, ...] = option((4, 8, 16, 32), "step counts")
    teacher_steps: tuple[int, ...] = option((), "step counts of a many-step model; empty is `steps`")
    clusters: int | None = option(None, "clusters of the features; none is a tenth of the texts")
    draws: int = option(200, "bootstrap draws of the intervals")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.draws < 2 or (self.clusters is not None and self.clusters < 2):
            raise UserError("draws and clusters must be at least 2")


@dataclass(frozen=True, kw_only=True)
class PageSettings:
    """Write the report of a pipeline's folder as one HTML file, or as one page of Markdown."""

    folder: Path = required("pipeline folder: what `tsdfm pipeline --out` made")
    markdown: Path | None = option(None, "write this Markdown file instead: settings, tables and where they come from")
    open: bool = option(False, "open the page in the browser")
