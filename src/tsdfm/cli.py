"""The command line. Each verb is a settings class and the function that takes it; the recipe file and the flags are
two ways to fill the same class.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import math
import operator
import os
import signal
import sys
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from tsdfm import start, terminal
from tsdfm.errors import UserError
from tsdfm.report.commands import TABLES, settings_of
from tsdfm.settings import add_flags, build, flag_values, merge, nearest, switches
from tsdfm.store.files import read_any_json

JSON = "--json"


@dataclass(frozen=True)
class Verb:
    """A word of the command line: where its settings and its function live, and what it says of itself."""

    settings: str
    run: str
    help: str
    section: str | None = None  # of a recipe
    positional: str | None = None  # the setting that may come without its flag
    epilog: str = ""
    json: bool = False  # can what it made be printed as JSON?


VERBS = {
    "corpus": Verb(
        "tsdfm.corpus.settings:CorpusSettings",
        "tsdfm.corpus.run:run",
        "gather text from files or a hub, mix it, hold some of it out",
        section="corpus",
        epilog="tsdfm corpus --path my-texts --out runs/mine/corpus",
    ),
    "tokens": Verb(
        "tsdfm.tokens.settings:TokensSettings",
        "tsdfm.tokens.run:run",
        "train a tokenizer and pack the corpus into rows",
        section="tokens",
        epilog="tsdfm tokens --corpus runs/mine/corpus --out runs/mine/tokens --vocab-size 8192 --length 256",
    ),
    "train": Verb(
        "",
        "",
        "train a model by a method: tsdfm train METHOD; without one, the list of them",
        epilog="tsdfm train mdlm --tokens runs/mine/tokens --out runs/mine/mdlm --net.preset small",
    ),
    "teacher": Verb(
        "tsdfm.methods.dfm:DFMSettings",
        "tsdfm.methods.dfm:METHOD.train",
        "short for train dfm: a discrete flow model on the tokens",
        section="dfm",
        epilog="tsdfm teacher --tokens runs/mine/tokens --out runs/mine/teacher --net.preset small --loop.steps 10000",
    ),
    "compass": Verb(
        "tsdfm.compass.settings:CompassSettings",
        "tsdfm.compass.run:run",
        "train the energy that tells good half-formed texts from bad ones",
        section="compass",
        epilog="tsdfm compass --tokens runs/mine/tokens --teacher runs/mine/teacher --out runs/mine/compass",
    ),
    "compass validate": Verb(
        "tsdfm.compass.settings:ValidateSettings",
        "tsdfm.compass.validate:run",
        "examine a compass on held-out text, as the paper's appendix does",
        positional="compass",
        epilog="tsdfm compass validate runs/mine/compass",
    ),
    "student": Verb(
        "tsdfm.methods.ts_dfm:TSDFMSettings",
        "",  # which method it means, `student_method` says
        "short for train fs-dfm and, with --policy sequence-to-token, train ts-dfm",
        section="student",
        epilog="tsdfm student --recipe small_h200 --tokens runs/mine/tokens --init-from runs/mine/teacher "
        "--out runs/mine/fs-dfm",
    ),
    "sample": Verb(
        "tsdfm.samples.settings:SampleSettings",
        "tsdfm.view.sample:run",
        "write texts with a trained model",
        positional="model",
        epilog="tsdfm sample; tsdfm sample runs/mine/teacher --steps 64 --prefix 'Once upon' --live",
        json=True,
    ),
    "pipeline": Verb(
        "tsdfm.pipeline.settings:PipelineSettings",
        "tsdfm.pipeline.run:run",
        "run a recipe from text to table",
        positional="recipe",
        epilog="tsdfm pipeline tiny_cpu --out runs/demo --set teacher.loop.steps=300 --set measure.samples=64",
    ),
    "judge train": Verb(
        "tsdfm.judges.settings:JudgeTrainSettings",
        "tsdfm.judges.train:run",
        "train an autoregressive model on the tokens, as an in-house judge",
        section="judge",
        epilog="tsdfm judge train --tokens runs/mine/tokens --out runs/mine/judge --net.preset small",
    ),
    "judge score": Verb(
        "tsdfm.judges.settings:JudgeScoreSettings",
        "tsdfm.report.judge_texts:run",
        "say how likely texts are, by any judge",
        positional="texts",
        epilog="tsdfm judge score samples.jsonl --judge smollm2 --out scores.json",
        json=True,
    ),
    "report measure": Verb(
        "tsdfm.report.settings:MeasureRunsSettings",
        "tsdfm.report.measure:command",
        "sample runs at several step counts and judge the texts",
        positional="runs",
        epilog="tsdfm report measure runs/demo --samples 64 --judges smollm2",
        json=True,
    ),
    **{
        f"report {name}": Verb(
            f"tsdfm.report.settings:{settings_of(name)}",
            "tsdfm.report.desk:run",
            made.help,
            positional="runs",
            epilog=f"tsdfm report {name} {made.example}",
            json=True,
        )
        for name, made in TABLES.items()
    },
    "report seeds": Verb(
        "tsdfm.report.settings:SeedsSettings",
        "tsdfm.report.commands.seeds:run",
        "join a table made with several seeds into one of means",
        positional="tables",
        epilog="tsdfm report seeds runs/a runs/b --name neighbours --out runs/both",
        json=True,
    ),
    "report page": Verb(
        "tsdfm.report.settings:PageSettings",
        "tsdfm.report.page.build:run",
        "write the report as one HTML file",
        positional="folder",
        epilog="tsdfm report page runs/demo --open",
        json=True,
    ),
    "view": Verb(
        "tsdfm.view.settings:ViewSettings",
        "tsdfm.view.run:run",
        "watch texts come to be, method beside method",
        positional="paths",
        epilog="tsdfm view; tsdfm view runs/demo; tsdfm view way.json --terminal; tsdfm view runs/mine/ts --steps 16",
    ),
    "import": Verb(
        "tsdfm.public.settings:ImportSettings",
        "tsdfm.public.run:run",
        "make a run of a public checkpoint: MDLM, Duo, SEDD, FS-DFM, LLaDA, Dream, …",
        positional="source",
        epilog="tsdfm import kuleshov-group/mdlm-owt --out runs/mdlm-owt",
    ),
    "export": Verb(
        "tsdfm.public.settings:ExportSettings",
        "tsdfm.public.export:run",
        "write a model as a folder for the hub",
        positional="model",
        epilog="tsdfm export runs/mine/mdlm --to mdlm-mine",
    ),
    "ship": Verb(
        "tsdfm.ship.settings:ShipSettings",
        "tsdfm.ship.run:run",
        "pack a student with its teacher and compass, to pass on",
        positional="student",
        epilog="tsdfm ship runs/mine/ts-dfm --teacher runs/mine/teacher --compass runs/mine/compass "
        "--name mine --card about.md --out mine",
    ),
    "card": Verb(
        "tsdfm.ship.settings:CardSettings",
        "tsdfm.ship.run:show_card",
        "print what is known of a shipped model",
        positional="model",
        epilog="tsdfm card tsdfm-stories",
        json=True,
    ),
    "serve": Verb(
        "tsdfm.serve.settings:ServeSettings",
        "tsdfm.serve.run:run",
        "serve models over HTTP, in OpenAI's shape, with a page to play with",
        positional="models",
        epilog="tsdfm serve; tsdfm serve runs/mine/ts-dfm runs/mine/teacher --port 8000",
    ),
    "verify": Verb(
        "tsdfm.doctor.verify:VerifySettings",
        "tsdfm.doctor.verify:run",
        "compare every file of runs, tokens, corpora and bundles with its hash",
        positional="paths",
        epilog="tsdfm verify runs/mine; tsdfm verify runs/mine/tokens tsdfm-stories",
        json=True,
    ),
    "doctor": Verb(
        "tsdfm.doctor.settings:DoctorSettings",
        "tsdfm.doctor.run:run",
        "say what is installed, what this machine can do and what a recipe needs",
        positional="recipe",
        epilog="tsdfm doctor uniform_170m",
        json=True,
    ),
    "completion": Verb(
        "tsdfm.completion.settings:CompletionSettings",
        "tsdfm.completion.run:run",
        "print a script by which bash, zsh or fish completes commands",
        positional="shell",
        epilog='eval "$(tsdfm completion bash)"',
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. A mistake ends in one line and exit code 2, whatever else escapes in one line and code 1."""
    words = list(sys.argv[1:] if argv is None else argv)
    share_cores()
    with start.streams():
        try:
            with terminal.one_command():
                code = _main(words)
            start.flush()
            return code
        except UserError as problem:
            return refused(str(problem))
        except KeyboardInterrupt:
            return interrupted(argv is None)
        except SystemExit as end:
            if isinstance(end.__context__, BrokenPipeError):  # of the tables' library
                return 0
            raise
        except Exception as problem:
            start.settle()
            if isinstance(problem, BrokenPipeError):  # the reader of our output has gone
                return 0
            if start.interrupted(problem):
                return interrupted(argv is None)
            if known := start.in_words(problem):
                return refused(known)
            print(f"tsdfm: {terminal.visible(start.saved(problem, words))}", file=sys.stderr)
            return 1


def interrupted(alone: bool) -> int:
    """By Ctrl-C. A process of its own ends now, whatever is pressed besides."""
    if alone:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("tsdfm: interrupted", file=sys.stderr)
    return 130


def refused(why: str) -> int:
    """Say why, in one line; under torchrun, the first process speaks for all."""
    rank, size = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    if not (rank.isdecimal() and size.isdecimal() and 0 < int(rank[:9]) < int(size[:9])):
        print(f"tsdfm: {terminal.visible(' '.join(why.split(chr(10))))}", file=sys.stderr)
    return 2


def share_cores() -> None:
    """Let threads that wait for each other sleep soon, before torch is loaded; what the user has set stays.

    By default they spin for milliseconds at the end of every parallel loop. Where another program has one of the cores,
    the one that is waited for may not even be running: a step then takes ten times as long as with one thread.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def _main(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(overview())
        return 0
    if words[0] in ("-V", "--version"):
        from tsdfm import __version__

        print(f"tsdfm {__version__}")
        return 0
    if not {"-h", "--help"} & {*words}:
        start.see_folder()
    if words[0] in ("train", "student"):
        return train(words[1:]) if words[0] == "train" else train_student(words[1:])
    name, rest = command(words)
    if name not in VERBS:
        raise unknown(words)
    verb, as_json = VERBS[name], VERBS[name].json and JSON in rest
    words = [word for word in rest if word != JSON] if as_json else rest
    settings = read(name, verb, words)  # help and mistakes are told before anything heavy is loaded
    if as_json:
        print_json(verb, settings)
    else:
        load(verb.run)(settings)
    return 0


def print_json(verb: Verb, settings: Any) -> None:
    """Run a verb; what it would print is kept back, and what it returns is printed as one JSON value."""
    if getattr(settings, "stream", False):
        raise UserError("--stream writes JSON lines where stdout is no terminal: leave out --json, or --stream")
    if getattr(settings, "live", False):
        raise UserError("--live plays the texts in a terminal: leave out --json, or --live")
    with contextlib.redirect_stdout(io.StringIO()):
        made = load(verb.run)(settings)
    print(json.dumps(plain(made), ensure_ascii=False, indent=2))


def plain(value: Any) -> Any:
    """What a verb returned, for JSON: a file's content, or a record's plain values; null for what is no number."""
    if isinstance(value, Path):
        known = value.suffix == ".json" and value.is_file()
        return plain(read_any_json(value)) if known else {"path": str(value)}
    if hasattr(value, "plain"):
        return plain(value.plain())
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def command(words: list[str]) -> tuple[str, list[str]]:
    """The command that the words begin with, of two words where there is one, and what follows it."""
    size = 2 if " ".join(words[:2]) in VERBS else 1
    return " ".join(words[:size]), words[size:]


def unknown(words: list[str]) -> UserError:
    """What to say to words that are no command; of some, such as `report`, the first is right."""
    group = [verb.partition(" ")[2] for verb in VERBS if verb.startswith(f"{words[0]} ")]
    if not group:
        return UserError(f"unknown command {words[0]!r}{nearest(words[0], VERBS)}")
    if len(words) > 1 and not words[1].startswith("-"):
        return UserError(f"unknown command '{words[0]} {words[1]}'{nearest(words[1], group)}")
    return UserError(f"{words[0]} is followed by one of: {', '.join(group)}")


def train(words: list[str]) -> int:
    """`tsdfm train METHOD …`: the method's own settings; without a method, what there is."""
    from tsdfm.methods import method, names

    if not words or words[0] in ("-h", "--help"):
        lines = [f"  {name:<12} {method(name).help}" for name in names()]
        print("\n".join(["usage: tsdfm train METHOD [settings]", "", *lines, "", VERBS["train"].epilog]))
        return 0
    verb = method_verb(words[0])
    settings = read(f"train {words[0]}", verb, words[1:])
    load(verb.run)(settings)
    return 0


def method_verb(name: str) -> Verb:
    """What `train NAME` reads and runs."""
    from tsdfm.methods import method

    chosen = method(name)
    if not chosen.trains:
        chosen.train(None)  # which says what it is instead
    place = type(chosen).__module__
    return Verb(f"{place}:METHOD.settings", f"{place}:METHOD.train", chosen.help, section=chosen.name)


def train_student(words: list[str]) -> int:
    """`tsdfm student …`: the method that the midpoints' policy means."""
    from tsdfm.methods import NAVIGATION, method, student_method

    name, values = student_method(plain_values("student", VERBS["student"], words))
    flags = [word.partition("=")[0] for word in words if name == "fs-dfm" and word.startswith("--")]
    unused = [flag for flag in flags if flag[2:].partition(".")[0].replace("-", "_") in NAVIGATION]
    if unused:
        flag = unused[0]
        raise UserError(f"{flag} is for navigated steps: add --policy sequence-to-token, or leave it out")
    method(name).train(build(method(name).settings, values))
    return 0


def overview() -> str:
    """What `tsdfm --help` prints."""
    lines = [
        "usage: tsdfm COMMAND [settings]",
        "",
        "Few-step discrete flow matching: train, distil, sample, measure.",
        "",
    ]
    lines += [f"  {name:<17} {verb.help}" for name, verb in VERBS.items()]
    return "\n".join([*lines, "", "`tsdfm COMMAND --help` lists its settings; `make demo` runs everything small."])


def load(place: str) -> Any:
    """`module:name`, imported when it is needed."""
    module, _, name = place.partition(":")
    return operator.attrgetter(name)(importlib.import_module(module))


class Parser(argparse.ArgumentParser):
    """argparse that raises instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message)


def read(name: str, verb: Verb, words: list[str]) -> Any:
    """The settings of a verb from its recipe, if one is named, and its flags on top."""
    return build(load(verb.settings), plain_values(name, verb, words))


def plain_values(name: str, verb: Verb, words: list[str]) -> dict[str, Any]:
    """The same as plain values."""
    cls = load(verb.settings)
    parser = Parser(
        prog=f"tsdfm {name}",
        usage=f"tsdfm {name} {positional(verb)}[settings]",
        description=(cls.__doc__ or "").strip(),
        epilog=f"example: {verb.epilog}" if verb.epilog else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    if verb.section:
        parser.add_argument("--recipe", metavar="NAME|FILE", help=f"take the settings of its {verb.section}")
    if verb.json:
        parser.add_argument(JSON, action="store_true", help="print what was made as JSON, and nothing else, on stdout")
    add_flags(parser, cls)
    found, left = parser.parse_known_args(spell_out(words, cls))
    given = vars(found)
    if verb.positional:
        given |= positionals(cls, verb.positional, left)
    if left:
        flags = [option for action in parser._actions for option in action.option_strings if option.startswith("--")]
        word = left[0].split("=")[0]
        raise UserError(f"unknown setting {word!r} for `tsdfm {name}`{nearest(word, flags)}")
    return merge(section(verb, given), flag_values(given, cls))


def positionals(cls: type, name: str, left: list[str]) -> dict[str, Any]:
    """The words that came without a flag, taken off `left`: one of them, or all where the setting is a list."""

    def is_flag(word: str) -> bool:
        return word.startswith("-") and word != "-"  # which is stdin

    if not left or is_flag(left[0]):
        return {}
    if typing.get_origin(typing.get_type_hints(cls)[name]) is not tuple:
        return {name: left.pop(0)}
    words = [word for word in left if not is_flag(word)]
    left[:] = [word for word in left if is_flag(word)]
    return {name: words}


def spell_out(words: list[str], cls: type) -> list[str]:
    """`--live RUN` as `--live true RUN` (a switch takes the next word only if it is true or false); -v as --verbose."""
    out: list[str] = []
    for word, after in zip(words, [*words[1:], ""], strict=False):
        word = "--verbose" if word == "-v" else word
        out.append(word)
        if word in switches(cls) and after.lower() not in ("true", "false", "yes", "no", "0", "1"):
            out.append("true")
    return out


def positional(verb: Verb) -> str:
    """How the usage line shows the setting that needs no flag."""
    return f"{verb.positional.upper()} " if verb.positional else ""


def section(verb: Verb, given: dict[str, Any]) -> dict[str, Any]:
    """The plain values of the recipe that was named."""
    if verb.section is None or "recipe" not in given:
        return {}
    from tsdfm.recipes import read_recipe

    return read_recipe(given["recipe"]).values_for(verb.section)


if __name__ == "__main__":
    sys.exit(main())
