"""What may come next on a command line, read off the settings of the command.

    tsdfm completion bash                                  # the script
    tsdfm completion bash --words=:sample --words=:--te    # what it asks at every Tab: --temperature and its help

The colon is for argparse, which takes a lone `--` for its own. An answer is a line: a word, a tab, a line of help. The
line `PATH` leaves it to the shell to list files.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from tsdfm import cli, methods, recipes
from tsdfm.completion.settings import CompletionSettings
from tsdfm.settings import ModelPath, RecipeName, flags_of

HERE = Path(__file__).parent
PATH = "PATH"

Answer = tuple[str, str]


def run(settings: CompletionSettings) -> None:
    """Print the script or, where words are given, what may come next."""
    if not settings.words:
        print((HERE / f"tsdfm.{settings.shell}").read_text(encoding="utf-8"), end="")
        return
    split = settings.shell == "bash"  # which takes --flag=value for three words, and completes the last
    words = [word.removeprefix(":") for word in settings.words]
    *before, last = joined(words) if split else words
    lead = last.partition("=")[0] + "=" if split and last.startswith("--") and "=" in last else ""
    for word, text in answers(before, last):
        if word == PATH:
            print(PATH)
        elif word.startswith(last):
            print(f"{word.removeprefix(lead)}\t{text}")


def joined(words: list[str]) -> list[str]:
    """`--flag`, `=`, `value` as one word again."""
    out: list[str] = []
    for word in words:
        if out and out[-1].startswith("--") and (word == "=" or out[-1].endswith("=")):
            out[-1] += word
        else:
            out.append(word)
    return out


def answers(before: list[str], last: str) -> Iterator[Answer]:
    """What the word `last`, perhaps begun, may become after the words `before`."""
    if not before:
        for first in dict.fromkeys(name.split()[0] for name in cli.VERBS):
            yield first, cli.VERBS[first].help if first in cli.VERBS else ", ".join(word for word, _ in below(first))
        yield from (("--help", "list the commands"), ("--version", "print the version"))
    elif before == ["train"]:
        yield from ((name, methods.method(name).help) for name in methods.names())
    elif before[0] == "train":
        yield from after(cli.method_verb(before[1]), before[2:], last)
    else:
        name, rest = cli.command(before)
        yield from below(name) if not rest else ()
        if name in cli.VERBS:
            yield from after(cli.VERBS[name], rest, last)


def below(first: str) -> list[Answer]:
    """The second words of a command and their help."""
    return [(name.split()[1], verb.help) for name, verb in cli.VERBS.items() if name.startswith(f"{first} ")]


def after(verb: cli.Verb, rest: list[str], last: str) -> Iterator[Answer]:
    """A value of the flag that waits for one, else a flag, or what the command takes without one."""
    flags = {f"--{name.replace('_', '-')}": (kind, text) for name, kind, _, text in flags_of(cli.load(verb.settings))}
    free = flags[f"--{verb.positional}"][0] if verb.positional else None
    if verb.section:
        flags["--recipe"] = RecipeName, f"take the settings of its {verb.section}"
    if verb.json:
        flags[cli.JSON] = bool, "print what was made as JSON"
    flags["--help"] = bool, "list the settings"
    wants, given = None, set[str]()  # the kind of value that the last flag waits for; the flags there are
    for word in rest:
        if wants is not None and not (wants is bool and word not in ("true", "false")):
            wants = None
        elif word.startswith("-"):
            flag, equals, _ = word.partition("=")
            given.add(flag)
            wants = flags[flag][0] if flag in flags and not equals else None
        elif typing.get_origin(free) is not tuple:
            free = None
    flag, equals, text = last.partition("=")
    if flag in flags and equals:
        yield from ((f"{flag}={word}" if word != PATH else PATH, told) for word, told in values(flags[flag][0], text))
    elif wants not in (None, bool):
        yield from values(wants, last)
    elif free is not None and not last.startswith("-"):
        yield from values(free, last)
    else:
        yield from (
            (flag, text)
            for flag, (kind, text) in flags.items()
            if flag not in given or typing.get_origin(kind) is tuple
        )


def values(kind: Any, text: str) -> Iterator[Answer]:
    """The values of a setting that can be listed; `text` is the value so far, whose last part counts in a list."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind == RecipeName:
        yield from ((name, "a recipe") for name in recipes.shipped())
        yield PATH, ""
    elif kind == ModelPath:
        yield from ((name, "a shipped model") for name in shipped_models())
        yield PATH, ""
    elif kind is Path:
        yield PATH, ""
    elif kind is bool:
        yield from (("true", ""), ("false", ""))
    elif origin is typing.Literal:
        yield from ((str(choice), "") for choice in args)
    elif origin is tuple and typing.get_origin(args[0]) is typing.Literal:
        lead = text[: text.rfind(",") + 1]
        yield from ((lead + word, told) for word, told in values(args[0], text))
    elif origin in (Annotated, tuple, types.UnionType, typing.Union):
        yield from values(next(arg for arg in args if arg is not type(None)), text)


def shipped_models() -> list[str]:
    """Shipped models by name, and the members of each; read off the folder, since reading bundles loads torch."""
    folder = HERE.parent / "ship" / "models"
    members = (path.relative_to(folder).with_suffix("") for path in folder.glob("*/*.safetensors"))
    return sorted({name.as_posix() for member in members for name in (member.parent, member)})
