"""README.md and docs/quickstart.md as they are written: every command and every Python example runs, top to bottom.

A command's words are the page's own. Behind them come flags that make it small enough for seconds (`SMALLER`), and
`make demo` is what the Makefile says, on the models of the `demo` fixture. All of it happens in one folder, which has
the pages and nothing else of the repository, and in this process: what is no command of tsdfm is given to `sh`.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_demo import FLAGS

from tsdfm.cli import VERBS, main, read
from tsdfm.methods import method, names

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/quickstart.md")
FENCED = re.compile(r"^```([\w-]*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`(?:\.venv/bin/)?tsdfm ([^`]+)`(?!`)")
HEREDOC = re.compile(r"<<-?\s*'?(\w+)'?")
COMMAND = re.compile(r"(\.venv/bin/)?tsdfm\s|make\s|pip\s|torchrun\s")

NOT_HERE = {  # how a command begins that is not run, and why
    "make setup": "this environment is the one it makes",
    "make dev": "this environment is the one it makes",
    "make test": "it runs this test",
    "make fuzz": "it runs the tests that `make test` runs, with other examples",
    "make lint": "CI runs it",
    "make docs": "it has a test of its own",
    "pip install": "it needs a network, and tsdfm is installed",
    ". .venv/bin/activate": "this environment is the active one",
    "torchrun": "it needs several GPUs; test_torchrun_trains_the_same_teacher runs two processes on the CPU",
}

NET = ["--net.width", "32", "--net.depth", "1", "--net.heads", "2"]
LOOP = ["--loop.steps", "2", "--loop.batch", "4", "--loop.compile", "false"]
EVALUATE = ["--eval-rows", "4", "--eval-times", "2"]
SMALLER = {
    "tokens": ["--vocab-size", "400", "--length", "48"],
    "teacher": [*NET, *LOOP, *EVALUATE],
    "compass": [*NET, *LOOP, "--eval-rows", "4"],
    "compass validate": ["--rows", "4", "--times", "3", "--pairs", "8", "--candidate-rows", "2"],
    "student": [*LOOP, *EVALUATE],
    "judge train": [*NET, *LOOP],
    "sample": ["--n", "1", "--steps", "2"],
    "pipeline": FLAGS,
    "report measure": ["--steps", "2", "--teacher-steps", "2", "--samples", "2"],
    "view": ["--n", "1", "--steps", "2", "--seconds", "0", "--no-open"],
}


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """(language, text) of the blocks of a page that are to be run: `sh`, `python`, and commands without a language."""
    for language, text in FENCED.findall((ROOT / page).read_text(encoding="utf-8")):
        if language in ("sh", "bash", "shell", "console") or (not language and COMMAND.match(text)):
            yield "sh", text
        elif language == "python":
            yield "python", text


def commands(text: str) -> Iterator[str]:
    """The commands of a shell block: lines, with those that a backslash or a here-document adds."""
    lines = iter(text.splitlines())
    for line in lines:
        while line.endswith("\\"):
            line = line.removesuffix("\\") + next(lines)
        end = HEREDOC.search(line)
        while end and not line.endswith(f"\n{end[1]}"):
            line += "\n" + next(lines)
        if line.strip() and not line.lstrip().startswith("#"):
            yield line


def verb_of(words: list[str]) -> tuple[str, list[str]]:
    """The longest verb at the beginning of the words, and the rest."""
    size = 2 if " ".join(words[:2]) in VERBS else 1
    return " ".join(words[:size]), words[size:]


def made_by(target: str) -> list[str]:
    """The commands of a target of the Makefile."""
    found = re.search(rf"^{target}:[^\n]*\n((?:\t[^\n]*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found, f"the Makefile has no target {target!r}"
    return [line.strip().replace("$(BIN)", ".venv/bin") for line in found[1].splitlines()]


def run(command: str) -> int:
    """Run a command of a page, and return its exit code."""
    if any(command.startswith(begin) for begin in NOT_HERE):
        return 0
    words = shlex.split(command, comments=True)
    if words[0] == "make":
        return max(run(line) for line in made_by(words[1]))
    if words[0] not in ("tsdfm", ".venv/bin/tsdfm"):
        return subprocess.run(["sh", "-ec", command], check=False).returncode
    verb, rest = verb_of(words[1:])
    like = verb
    if verb == "train" and rest:  # a method with a network of its own, or one that starts from another model
        like = "teacher" if "net" in method(rest[0]).settings.__dataclass_fields__ else "student"
    return main([*verb.split(), *rest, *SMALLER.get(like, [])])


def test_every_command_of_the_pages_runs(demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(demo, "runs/demo")
    shutil.copytree(
        ROOT / "docs", "docs", ignore=lambda _, names: [n for n in names if not n.endswith((".md", "runs"))]
    )
    shutil.copy(ROOT / "README.md", "README.md")
    for page in PAGES:
        found = list(blocks(page))
        assert {"sh", "python"} <= {language for language, _ in found}, f"{page} has no commands to run"
        for language, text in found:
            if language == "python":
                exec(compile(text, f"{page}, an example in Python", "exec"), {"__name__": page})
                continue
            for command in commands(text):
                assert run(command) == 0, f"{page}: {command}"


def test_the_python_of_the_page_on_measuring_runs(
    demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    Path("runs/demo").symlink_to(demo)
    ((_, text),) = [block for block in blocks("docs/measuring.md") if block[0] == "python"]
    exec(compile(text, "docs/measuring.md", "exec"), {"__name__": "measuring"})
    bound, compared = capsys.readouterr().out.splitlines()
    assert re.search(r"\d\.\d", bound)
    assert compared


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_the_text_are_understood(page: str) -> None:
    """`tsdfm pipeline RECIPE …` in a sentence: there is such a verb, and what is said in full can be read."""
    for given in INLINE.findall((ROOT / page).read_text(encoding="utf-8")):
        verb, rest = verb_of(shlex.split(given))
        if verb.isupper() or not rest or "…" in given or any(word.isupper() for word in rest):
            assert verb.isupper() or any(verb in (name, name.split()[0]) for name in VERBS), given
        elif verb == "train":
            assert rest[0] in names(), given
        else:
            read(verb, VERBS[verb], rest)
