"""Methods: one file each, loaded when used. `docs/adding-a-method.md` says how to write one.

    method("ts-dfm").train(settings)        # a run folder
    names()                                 # dfm, fs-dfm, mdlm, ts-dfm
    jump_for("remdm-cap:0.1", spec)         # a jump that a method brings, with its dial

A file holds one `METHOD`. Here nothing heavy is imported, nor at the top of a method's file: settings, names and help
answer at once, and torch is loaded by what is called. Other rooms ask a method what it is; none branches on its name.
A file whose name begins with _ is shared by methods and is none itself.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tsdfm.errors import UserError
from tsdfm.settings import nearest

if TYPE_CHECKING:
    from tsdfm.distil.parts import Floor, Rollout, Teacher, Times
    from tsdfm.distil.task import StudentTask
    from tsdfm.engine.distributed import Processes
    from tsdfm.flow import Bound, Jump
    from tsdfm.nn.velocity import VelocitySpec
    from tsdfm.teacher.task import TeacherTask, TextLoss
    from tsdfm.tokens.rows import TokenRows

JumpMaker = Callable[..., "Jump"]
"""(schedule, source[, dial]) → jump."""


class Method:
    """What a method is. Subclasses set the words and say how they train; the rest follows from them.

    `needs` are the settings that must name another model. `sources` are the laws of x_0 it is made for.
    """

    name: ClassVar[str]
    """What the command line, recipes and manifests call it."""
    label: ClassVar[str] = ""
    """What its runs are called in samples and tables, unless their settings say otherwise; empty is `name`."""
    title: ClassVar[str]
    """Its name in the literature."""
    help: ClassVar[str]
    """One line for the list of methods."""
    trains: ClassVar[bool] = True
    """Is it a way to train? If not, it is one to sample: it brings jumps alone."""
    settings: ClassVar[type]
    """The settings class of its training."""
    needs: ClassVar[tuple[str, ...]] = ()
    sources: ClassVar[tuple[str, ...]] = ("uniform", "mask")
    time: ClassVar[bool] = True
    """Is the network told t?"""
    clock: ClassVar[str] = "t"
    """As what it is told the time: "t", or "sigma", −log κ(t) (`flow.schedule.sigma`)."""
    step_size: ClassVar[bool] = False
    """Is the network told h?"""
    logits: ClassVar[str] = "plain"
    """What the network's answer means (`flow.logits`)."""
    jump: ClassVar[str] = "euler"
    """The jump it writes by unless told otherwise."""
    many_step: ClassVar[bool] = True
    """Does it need many steps, as a teacher does? Tables then measure it at more of them."""

    def train(self, settings: Any) -> Path:
        """Train a model by these settings and return its run folder."""
        raise NotImplementedError

    def check(self, settings: Any) -> None:
        """Refuse what would show only after a start, in one line."""

    def jumps(self) -> Mapping[str, JumpMaker]:
        """Jumps the method brings besides `flow.JUMPS`: name → (schedule, source[, dial]) → jump."""
        return {}

    def bound(self) -> Bound | None:
        """The bound of −log p(text) that its models are measured by, with its label; none where there is none."""
        from tsdfm.flow.elbo import FLOW_BOUND

        return FLOW_BOUND

    def then(self, settings: Any) -> tuple[str | Path, ...]:
        """The words of the command that comes after the training, for those who run commands one by one."""
        return ("sample", settings.out)

    def words(self) -> dict[str, Any]:
        """What a `VelocitySpec` says of a model of this method."""
        return {
            "method": self.name,
            "time": self.time,
            "clock": self.clock,
            "step_size": self.step_size,
            "logits": self.logits,
            "jump": self.jump,
        }


class TextMethod(Method):
    """A method that learns from text alone: a subclass says by `loss` what its network minimises."""

    def loss(self, settings: Any, spec: VelocitySpec) -> TextLoss:
        """What is minimised (`teacher.task.TextLoss`)."""
        raise NotImplementedError

    def task(self, settings: Any, spec: VelocitySpec, valid: TokenRows | None) -> TeacherTask:
        """What the training loop is given."""
        from tsdfm.teacher.task import TeacherTask

        return TeacherTask(settings, spec, valid, self.loss(settings, spec), self.bound())

    def train(self, settings: Any) -> Path:
        from tsdfm.teacher.run import train

        return train(settings, self)

    def check(self, settings: Any) -> None:
        from tsdfm.teacher.run import check

        check(settings)


class StudentMethod(Method):
    """A method that distils a few-step model from one that is there: a subclass says what differs from FS-DFM.

    The four parts of a distillation are `distil.parts`; each has a method of its own here, to be replaced.
    """

    needs: ClassVar[tuple[str, ...]] = ("init_from",)
    step_size, jump, many_step = True, "cumulative", False

    def times(self, settings: Any) -> Times:
        """Which rows take a large step, and its t and h: h = 2^0 … 2^−10."""
        from tsdfm.distil.times import Levels, large_share, weights_of

        weights = weights_of(settings.levels, settings.level_weights)
        return Levels(weights, large_share(weights, settings.share))

    def teacher(self, settings: Any, spec: VelocitySpec, world: Processes) -> Teacher:
        """Whose answers are learned: the student's own average."""
        from tsdfm.distil.teachers import Average

        return Average()

    def rollout(self, settings: Any, spec: VelocitySpec, world: Processes) -> Rollout:
        """The target of a large step: an RK-4 chain with blind midpoints."""
        from tsdfm.distil.chain import Chain

        return Chain(settings, spec)

    def floor(self, settings: Any, spec: VelocitySpec, world: Processes) -> Floor:
        """What the smallest step learns: the data, or a frozen teacher's answer."""
        from tsdfm.distil.floor import FromData, frozen_teacher

        teacher = frozen_teacher(settings, spec, world)
        return FromData(spec.flow_schedule()) if teacher is None else teacher

    def task(self, settings: Any, spec: VelocitySpec, valid: TokenRows | None, world: Processes) -> StudentTask:
        """What the training loop is given."""
        from tsdfm.distil.parts import Parts
        from tsdfm.distil.task import StudentTask

        parts = Parts(
            times=self.times(settings),
            teacher=self.teacher(settings, spec, world),
            rollout=self.rollout(settings, spec, world),
            floor=self.floor(settings, spec, world),
        )
        return StudentTask(settings, spec, valid, parts, self.bound())

    def inputs(self, settings: Any) -> dict[str, Path]:
        """The models its training reads besides the one it starts from."""
        from tsdfm.distil.floor import teacher_path

        return {"teacher": teacher_path(settings)} if settings.target == "teacher" else {}

    def train(self, settings: Any) -> Path:
        from tsdfm.distil.run import train

        return train(settings, self)

    def check(self, settings: Any) -> None:
        self.times(settings)


def files() -> list[str]:
    """The methods there are, ways to sample among them, without loading them."""
    found = (module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))
    return sorted(name.replace("_", "-") for name in found)


def names() -> list[str]:
    """The methods that train."""
    return [name for name in files() if method(name).trains]


def method(name: str) -> Method:
    """A method by its name."""
    if name not in files():
        raise UserError(f"unknown method {name!r}{nearest(name, files())}")
    found: Method = importlib.import_module(f"{__name__}.{name.replace('-', '_')}").METHOD
    return found


def method_of(manifest: Mapping[str, Any]) -> Method | None:
    """The method of the model that a run's manifest tells of; none where it holds no velocity network.

    Runs that did not record it are DFM teachers, or students that say whether their midpoints were blind.
    """
    model = manifest.get("model")
    if not isinstance(model, Mapping) or "schedule" not in model:
        return None
    if model.get("method"):
        return method(str(model["method"]))
    if not model.get("step_size"):
        return method("dfm")
    given = manifest.get("settings")
    return method(student_method(given if isinstance(given, Mapping) else {})[0])


def jump_for(name: str, spec: VelocitySpec) -> Jump:
    """A jump by its name for a model of `spec`: `auto`, one of `flow.JUMPS`, or one that a method brings.

    A jump that has a dial, such as ReMDM's η, takes it after a colon: `remdm-cap:0.1`.
    """
    from tsdfm.flow import JUMPS, jump_from

    word, colon, dial = (spec.usual_jump() if name == "auto" else name).partition(":")
    schedule, source = spec.flow_schedule(), spec.flow_source()
    if word in JUMPS and not colon:
        return jump_from(word, schedule, source)
    brought = {jump: maker for each in files() for jump, maker in method(each).jumps().items()}
    if word not in brought:
        raise UserError(f"unknown jump {name!r}{nearest(name, ('auto', *JUMPS, *brought))}")
    try:
        return brought[word](schedule, source, *([float(dial)] if colon else []))
    except (TypeError, ValueError):
        raise UserError(f"jump {word} takes no such dial as {dial!r}") from None


def student_method(values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The method and its settings that `tsdfm student` and a recipe's [student] mean: by the midpoints' `policy`."""
    if values.get("policy", "blind") != "blind":
        return "ts-dfm", dict(values)
    navigation = ("policy", "compass", "navigate", "refresh", "probe_every")
    return "fs-dfm", {name: value for name, value in values.items() if name not in navigation}
