"""Methods: one file each, loaded when used. `docs/adding-a-method.md` says how to write one.

    method("ts-dfm").train(settings)        # a run folder
    names()                                 # dfm, fs-dfm, mdlm, ts-dfm
    jump_for("remdm-cap:0.1", spec)         # a jump that a method brings, with its dial

A file holds one `METHOD`. Here nothing heavy is imported, nor at the top of a method's file: settings, names and help
answer at once, and torch is loaded by what is called. Other rooms ask a method what it is; none branches on its name.
A file whose name begins with _ is shared by methods and is none itself.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tsdfm.errors import UserError
from tsdfm.settings import nearest

if TYPE_CHECKING:
    from tsdfm.distil.parts import Floor, Parts, Rollout, Teacher, Times
    from tsdfm.engine.distributed import Processes
    from tsdfm.engine.task import Task
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
    blind: ClassVar[str] = ""
    """The method that it is without a compass, where a compass navigates its midpoints: its control in tables."""

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

    def words(self, settings: Any = None) -> dict[str, Any]:
        """What a `VelocitySpec` says of a model of this method, trained by `settings` (none: by its defaults)."""
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


class DistilMethod(Method):
    """A method that distils a few-step model from one that is there.

    A subclass gives the four parts of `distil.parts`, or a `task` of its own.
    """

    needs: ClassVar[tuple[str, ...]] = ("init_from",)
    many_step = False
    keeps: ClassVar[tuple[str, ...]] = ()
    """Which of `time`, `clock`, `step_size`, `logits` and `jump` stay as they are in the model it starts from."""

    def told(self, settings: Any, origin: VelocitySpec) -> dict[str, Any]:
        """Which of its words are others for a student that starts from a model of `origin`: what it `keeps`."""
        return {name: getattr(origin, name) for name in self.keeps}

    def times(self, settings: Any) -> Times:
        """Which rows take a large step, and its t and h."""
        raise NotImplementedError

    def teacher(self, settings: Any, spec: VelocitySpec, world: Processes) -> Teacher:
        """Whose answers are learned."""
        raise NotImplementedError

    def rollout(self, settings: Any, spec: VelocitySpec, world: Processes) -> Rollout:
        """The target of a large step."""
        raise NotImplementedError

    def floor(self, settings: Any, spec: VelocitySpec, world: Processes) -> Floor:
        """What the smallest step learns: the data."""
        from tsdfm.distil.floor import FromData

        return FromData(spec)

    def parts(self, settings: Any, spec: VelocitySpec, world: Processes) -> Parts:
        """The four parts together."""
        from tsdfm.distil.parts import Parts

        return Parts(
            times=self.times(settings),
            teacher=self.teacher(settings, spec, world),
            rollout=self.rollout(settings, spec, world),
            floor=self.floor(settings, spec, world),
        )

    def task(self, settings: Any, spec: VelocitySpec, valid: TokenRows | None, world: Processes) -> Task:
        """What the training loop is given."""
        from tsdfm.distil.task import StudentTask

        return StudentTask(settings, spec, valid, self.parts(settings, spec, world), self.bound())

    def rounds(self, settings: Any) -> int:
        """How many rounds of distillation a whole training is, where tables shall say so; 0 where they need not."""
        return 0

    def inputs(self, settings: Any) -> dict[str, Path]:
        """The models its training reads besides the one it starts from."""
        return {}

    def train(self, settings: Any) -> Path:
        from tsdfm.distil.run import train

        return train(settings, self)


class StudentMethod(DistilMethod):
    """FS-DFM and what differs from it in a part or two: a student that is told h, and learns from its own average.

    It is told the time as its start is, and its answers mean what those of its start do.
    """

    step_size, jump = True, "cumulative"
    keeps: ClassVar[tuple[str, ...]] = ("time", "clock", "logits")

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
        return FromData(spec) if teacher is None else teacher

    def inputs(self, settings: Any) -> dict[str, Path]:
        from tsdfm.distil.floor import teacher_path

        return {"teacher": teacher_path(settings)} if settings.target == "teacher" else {}

    def check(self, settings: Any) -> None:
        self.times(settings)


def files() -> list[str]:
    """The methods there are, ways to sample among them, without loading them."""
    return list(_files(tuple(__path__)))


@functools.cache
def _files(folders: tuple[str, ...]) -> list[str]:
    """The same, in these folders, which are read once."""
    found = (module.name for module in pkgutil.iter_modules(folders) if not module.name.startswith("_"))
    return sorted(name.replace("_", "-") for name in found)


def names() -> list[str]:
    """The methods that train."""
    return [name for name in files() if method(name).trains]


def method(name: str) -> Method:
    """A method by its name."""
    if name not in files():
        raise UserError(f"unknown method {name!r}{nearest(name, names())}")
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


def brought_jumps() -> dict[str, JumpMaker]:
    """The jumps that methods bring, by name: `flow.jump_from` finds them here."""
    return {jump: maker for each in files() for jump, maker in method(each).jumps().items()}


def jump_for(name: str, spec: VelocitySpec) -> Jump:
    """A jump by its name for a model of `spec`: `auto` is the one its method chose (`VelocitySpec.flow_jump`)."""
    return spec.flow_jump(name)


def bound_of(spec: VelocitySpec) -> Bound | None:
    """The bound that a model of `spec` is measured by; runs that did not record their method have the flow's."""
    from tsdfm.flow.elbo import FLOW_BOUND

    return method(spec.method).bound() if spec.method else FLOW_BOUND


NAVIGATION = ("compass", "navigate", "refresh", "probe_every")
"""Settings of TS-DFM that FS-DFM has no use for."""


def student_method(values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The method and its settings that `tsdfm student` and a recipe's [student] mean: by the midpoints' `policy`."""
    if values.get("policy", "blind") != "blind":
        return "ts-dfm", dict(values)
    return "fs-dfm", {name: value for name, value in values.items() if name not in ("policy", *NAVIGATION)}
