"""What a recipe can train: every method of `tsdfm.methods`, and the compass, which is none but is trained like one."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from tsdfm.compass.settings import CompassSettings
from tsdfm.errors import UserError
from tsdfm.methods import Method, method, names
from tsdfm.settings import nearest


class CompassTrainer(Method):
    """The compass: an energy instead of a velocity, so it writes nothing and no table has a row for it."""

    name, title, help = "compass", "compass", "the energy that tells good half-formed texts from bad ones"
    settings = CompassSettings
    needs = ("teacher",)
    many_step = False

    def train(self, settings: CompassSettings) -> Path:
        from tsdfm.compass.run import run

        return run(settings)

    def check(self, settings: CompassSettings) -> None:
        from tsdfm.compass.negatives import STRATEGIES

        settings.net.shape()
        for name in settings.corrupt.weights():
            if name not in STRATEGIES:
                raise UserError(f"unknown strategy {name!r} in the recipe{nearest(name, STRATEGIES)}")


COMPASS = CompassTrainer()


def trainer(name: str) -> Method:
    """A method by its name, or the compass."""
    if name not in (known := [*names(), COMPASS.name]):
        raise UserError(f"unknown method {name!r} in the recipe{nearest(str(name), known)}")
    return COMPASS if name == COMPASS.name else method(name)


def kind(name: str) -> str:
    """teacher, student or compass: what the recipe's words mean by them."""
    return COMPASS.name if name == COMPASS.name else "teacher" if trainer(name).many_step else "student"


def settings_known(name: str) -> frozenset[str]:
    """The names of a method's settings."""
    return frozenset(field.name for field in fields(trainer(name).settings))


def student_settings() -> frozenset[str]:
    """The names of all settings that some kind of student has."""
    return frozenset().union(*(settings_known(name) for name in names() if kind(name) == "student"))
