"""What Tab offers: the words that the command line takes, in each shell."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import resource
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from tsdfm.cli import VERBS, main
from tsdfm.completion.run import answers, joined, values
from tsdfm.methods import names
from tsdfm.recipes import shipped
from tsdfm.store.bundle import shipped_names

SHELLS = ("bash", "zsh", "fish")


def words(*before: str, begun: str = "") -> list[str]:
    return [word for word, _ in answers(list(before), begun) if word.startswith(begun) or word == "PATH"]


def script(shell: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as told:
        assert main(["completion", shell]) == 0
    return told.getvalue()


def need(shell: str) -> str:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed")
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to be in, with the command and a few files in it."""
    place = tmp_path_factory.mktemp("place")
    tool = place / "bin" / "tsdfm"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nexec {sys.executable} -m tsdfm "$@"\n')
    tool.chmod(0o755)
    (place / "my run").mkdir()
    (place / "mine.toml").touch()
    return place


@pytest.fixture
def env(place: Path) -> dict[str, str]:
    home = str(Path(sys.modules["tsdfm"].__file__ or "").parents[1])
    path = os.pathsep.join((str(place / "bin"), os.environ["PATH"]))
    return {**os.environ, "PATH": path, "PYTHONPATH": home, "HOME": str(place), "TERM": "dumb"}


@pytest.mark.parametrize("verb", [*VERBS, *(f"train {name}" for name in names())])
def test_every_flag_that_help_lists_is_offered_and_no_other(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    if verb == "train":
        assert words("train") == names()
        return
    with pytest.raises(SystemExit):
        main([*verb.split(), "--help"])
    told = re.findall(r"^  (?:-h, )?(--[\w.-]+)", capsys.readouterr().out, flags=re.MULTILINE)
    assert sorted(words(*verb.split(), begun="-")) == sorted(told)


def test_commands_methods_recipes_and_models() -> None:
    assert set(words()) == {name.split()[0] for name in VERBS} | {"--help", "--version"}
    assert words("report") == [name.split()[1] for name in VERBS if name.startswith("report ")]
    assert words("compass", begun="v") == ["validate"]
    assert words("pipeline") == [*shipped(), "PATH"]
    assert words("train", "dfm", "--recipe") == [*shipped(), "PATH"]
    models = words("sample")
    assert {name for name in models if "/" not in name} == {*shipped_names(), "PATH"}
    assert "tsdfm-stories/teacher" in words("student", "--init-from")
    assert words("completion") == list(SHELLS)


def test_values_and_what_follows_them() -> None:
    assert words("sample", "--weights") == ["ema", "model"]
    assert words("sample", begun="--weights=e") == ["--weights=ema"]
    assert words("sample", begun="--live=") == ["--live=true", "--live=false"]
    assert words("corpus", "--path") == ["PATH"]
    assert words("sample", "--prefix") == []  # any text
    assert "--weights" not in words("sample", "--weights", "ema", begun="--")  # once is enough
    assert "--set" in words("pipeline", "tiny_cpu", "--set", "a=b", begun="--")  # a list may be given again
    assert "tsdfm-stories" in words("sample", "--live")  # a switch wants no value
    assert "--n" in words("sample", "tsdfm-stories")  # one model is enough
    assert "tsdfm-stories" in words("report", "main", "tsdfm-stories")  # of these there may be many
    assert words("nowhere") == []


def test_parts_of_a_list_are_completed_one_by_one() -> None:
    kind = tuple[Literal["uniform", "mask"], ...]
    assert [word for word, _ in values(kind, "")] == ["uniform", "mask"]
    assert [word for word, _ in values(kind, "uniform,m")] == ["uniform,uniform", "uniform,mask"]


def test_an_equals_sign_that_bash_parts_is_joined_again() -> None:
    assert joined(["sample", "--weights", "=", "e", "--n", "3"]) == ["sample", "--weights=e", "--n", "3"]


def test_bash(place: Path, env: dict[str, str]) -> None:
    """The script, run in bash with the words that bash would give it."""
    asked: dict[tuple[str, ...], set[str]] = {
        ("tra",): {"train"},
        ("train", ""): set(names()),
        ("train", "mdlm", "--net.pre"): {"--net.preset"},
        ("completion", "bash", "--"): {"--shell", "--words", "--help"},
        ("--",): {"--help", "--version"},
        ("pipeline", "tiny"): {"tiny_cpu"},
        ("pipeline", "m"): {"mask_170m", "mine.toml", "my run"},
        ("sample", "tsdfm-stories", "--quick", ""): {"auto", "record", "compile", "off"},
        ("sample", "--quick", "="): {"auto", "record", "compile", "off"},
        ("sample", "--quick", "=", "c"): {"compile"},
        ("sample", "--out", "=", "mi"): {"mine.toml"},
        ("report", "thr"): {"threshold"},
        ("sample", "--prefix", "Mia"): set(),
    }
    lines = [script("bash")]
    for given in asked:
        quoted = " ".join(f"'{word}'" for word in ("tsdfm", *given))
        lines += [f"COMP_WORDS=({quoted}); COMP_CWORD={len(given)}; _tsdfm", "printf '%s|' \"${COMPREPLY[@]}\"; echo"]
    lines.append("complete -p tsdfm")
    done = subprocess.run(
        [need("bash"), "--norc"], input="\n".join(lines), cwd=place, env=env, capture_output=True, text=True
    )
    assert done.stderr == ""
    *told, registered = done.stdout.splitlines()
    assert registered == "complete -F _tsdfm tsdfm"
    assert [{word for word in line.split("|") if word} for line in told] == list(asked.values())


def test_fish(place: Path, env: dict[str, str]) -> None:
    """The script, by fish's own completion."""
    lines = ["tsdfm train ", "tsdfm sample --quick=c", "tsdfm sample --weights ", "tsdfm doctor m"]
    asked = [f"complete -C '{line}'; echo ." for line in lines]
    done = subprocess.run(
        [need("fish"), "--no-config"],
        input="\n".join([script("fish"), *asked]),
        cwd=place,
        env=env,
        capture_output=True,
        text=True,
    )
    told = [{line.split("\t")[0] for line in part.splitlines() if line} for part in done.stdout.split("\n.\n")]
    assert told[:4] == [set(names()), {"--quick=compile"}, {"ema", "model"}, {"mask_170m", "mine.toml", "my run/"}]


def test_zsh(place: Path, env: dict[str, str]) -> None:
    """The script, in a zsh at a terminal: one answer is put in, several are listed with their help."""
    zsh = need("zsh")
    (place / "complete.zsh").write_text(script("zsh"))
    with terminal([zsh, "-f", "-i"], place, env) as (write, until):
        write("PS1='> '; autoload -U compinit; compinit -u -D; source ./complete.zsh; echo re''ady\n")
        until("ready")
        write("echo tsdfm\n")  # a line of its own: what follows is typed at a prompt
        until("tsdfm")
        write("tsdfm sample --tempe\t")
        until("--temperature")
        write("\x15tsdfm sample --quick=co\t")
        until("--quick=compile")
        write("\x15tsdfm train \t")
        for text in (*names(), "masked diffusion"):
            until(text)
        write("\x15tsdfm corpus --path mine.t\t")
        until("mine.toml")


@contextlib.contextmanager
def terminal(
    argv: list[str], cwd: Path, env: dict[str, str]
) -> Iterator[tuple[Callable[[str], None], Callable[[str], None]]]:
    """A program at a terminal: write to it, and read until it has shown something."""
    master, slave = pty.openpty()
    shell = subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave, cwd=cwd, env=env, start_new_session=True)
    os.close(slave)
    shown = ""

    def write(text: str) -> None:
        nonlocal shown
        shown = ""
        os.write(master, text.encode())

    def until(text: str) -> None:
        nonlocal shown
        end = time.monotonic() + 60
        while text not in shown:
            assert time.monotonic() < end, f"{text!r} is not in {shown!r}"
            if select.select([master], [], [], 0.2)[0]:
                shown += os.read(master, 65536).decode(errors="replace")

    try:
        yield write, until
    finally:
        shell.kill()
        shell.wait()
        os.close(master)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_valid_and_says_where_it_goes(shell: str, tmp_path: Path) -> None:
    (tmp_path / "script").write_text(script(shell))
    assert f"tsdfm completion {shell}" in script(shell)
    done = subprocess.run([need(shell), "-n", str(tmp_path / "script")], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_answer_takes_a_third_of_a_second_at_most(env: dict[str, str]) -> None:
    """Of a processor's time, since others may use it too; the quickest of three."""
    spent = []
    for given in (("pipeline", ""), ("train", "ts-dfm", "--"), ("sample", "--compass", "")):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        asked = [f"--words=:{word}" for word in given]
        for _ in range(3):
            subprocess.run([sys.executable, "-m", "tsdfm", "completion", "bash", *asked], env=env, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / 3)
    assert max(spent) < 0.3, spent
