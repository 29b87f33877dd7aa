"""kill −9 at any moment: every stage is killed again and again, then run to its end, and must have lost nothing.

    python tests/chaos/kills.py --kills 1000 --log runs/kills.jsonl    # the same again goes on where it was stopped

A life of a stage: it is begun, killed, begun again by the same command, killed …, and at last left to end. What it has
made is then compared, file by file, with what one that was never killed made: bytes, or JSON without its times. Its
inputs must be as they were, and no temporary file may be left. When the kills come follows from their number, by the
golden ratio, in parts of the time that the stage takes; so every moment of it is met. The log has a line a life.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import chaos_world
from chaos_run import snapshot
from chaos_world import EVAL, LOOP, NET

from tsdfm.cli import main as tsdfm

TIMES = {"created", "seconds", "tokens_per_s"}  # of the clock, in JSON
HASHES = {"inputs", "parent", "key", "identity"}  # of what has a time in it, where a pipeline made that too
KILLS = 4  # of a life
GOLDEN = (5**0.5 - 1) / 2
LONG = LOOP.replace("--loop.steps 2", "--loop.steps 8") + " --loop.log-every 1 --loop.eval-every 3 --resume"
CORPUS = "corpus --path texts --cut lines --valid 0.2 --out made"
TOKENS = "tokens --corpus corpus --out made --vocab-size 300 --length 24 --shard-rows 4 --workers 1"
BYTES = TOKENS.replace("--vocab-size 300", "--tokenizer byte")
STAGES = {
    "corpus": (CORPUS, "made"),
    "2 corpora": (" ; ".join(f"{CORPUS} --part {part}/2" for part in (1, 0)), "made"),
    "tokens": (TOKENS, "made"),
    "3 tokens": (" ; ".join(f"{BYTES} --part {part}/3" for part in (2, 0, 1)), "made"),
    "teacher": (f"teacher --tokens tokens --out made {NET} {LONG} {EVAL}", "made"),
    "compass": (
        f"compass --tokens tokens --teacher teacher-uniform --out made {NET} {LONG} --eval-rows 2 --negatives 2 "
        "--corrupt.mixture random_replace=1",
        "made",
    ),
    "validate": (
        "compass validate compass-uniform --rows 4 --times 4 --pairs 8 --candidate-rows 2",
        "compass-uniform/validation.json",
    ),
    "student": (f"train fs-dfm --tokens tokens --init-from teacher-uniform --out made {LONG} {EVAL}", "made"),
    "judge": (f"judge train --tokens tokens --out made {NET} {LONG} --eval-rows 2", "made"),
    "sample": ("sample teacher-uniform --n 8 --steps 8 --out made/x.jsonl --save-trajectory made/y.json", "made"),
    "ship": ("ship fs-dfm-uniform --teacher teacher-uniform --name m --out made", "made"),
    "reship": ("ship fs-dfm-uniform --teacher teacher-uniform --name m --out bundle", "bundle"),
    "score": ("judge score texts.jsonl --judge judge --out made/scores.json --device cpu", "made"),
    "measure": ("report measure teacher-uniform --samples 8 --steps 2,4 --out made --world small --device cpu", "made"),
    "pipeline": ("pipeline recipe.toml --out made", "made"),
}


@dataclass
class Life:
    """What became of one life of a stage."""

    stage: str
    moments: list[float]
    kills: int = 0
    late: int = 0  # it had ended before the kill came
    wrong: list[str] = field(default_factory=list)


def started(commands: str, place: Path) -> int:
    """The process of one or more commands, forked; what it says is not heard."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            os.chdir(place)
            nothing = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(nothing, number)
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                code = next((code for one in commands.split(" ; ") if (code := tsdfm(one.split()))), 0)
        finally:
            os._exit(code)
    return pid


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def timeless(value: Any, aside: set[str]) -> Any:
    """Plain values without what the clock put into them."""
    if isinstance(value, dict):
        return {name: timeless(inner, aside) for name, inner in value.items() if name not in aside}
    return [timeless(inner, aside) for inner in value] if isinstance(value, list) else value


def digest(product: Path, name: str) -> dict[str, str]:
    """Every file of what a stage made: the hash of its bytes, or of its JSON without times; pages are left out."""
    out, aside = {}, TIMES | (HASHES if name == "pipeline" else set())
    files = [product] if product.is_file() else sorted(path for path in product.rglob("*") if path.is_file())
    for path in files:
        if path.suffix in (".html", ".svg", ".md") or path.name == ".checked.json":
            continue
        data = path.read_bytes()
        if path.suffix in (".json", ".jsonl"):
            lines = data.decode().splitlines() if path.suffix == ".jsonl" else [data.decode()]
            plain = [json.dumps(timeless(json.loads(line), aside), sort_keys=True) for line in lines]
            data = "\n".join(sorted(plain) if path.name.endswith("scores.jsonl") else plain).encode()
        place = path.relative_to(product.parent).as_posix()
        place = re.sub(r"-[0-9a-f]{16}\.json$", ".json", place) if name == "pipeline" else place
        out[place] = hashlib.sha256(data).hexdigest()
    return out


def differences(found: dict[str, str], wanted: dict[str, str]) -> list[str]:
    return [name for name in sorted(found.keys() | wanted.keys()) if found.get(name) != wanted.get(name)]


class Stage:
    """One stage: what it makes undisturbed, and how long that takes."""

    def __init__(self, name: str, world: Path, home: Path) -> None:
        command, product = STAGES[name]
        self.name, self.command, self.product, self.world = name, command, product, world
        seconds, made = [], []
        for _ in range(3):
            place = chaos_world.copied(world, home / "reference")
            begin = time.monotonic()
            assert ended(started(self.command, place)) == 0, command
            seconds.append(time.monotonic() - begin)
            made.append(digest(place / product, name))
        self.seconds, self.wanted = 1.2 * statistics.median(seconds), made[0]
        for again in made[1:]:
            assert again == made[0], f"{name} does not make the same twice: {differences(again, made[0])}"
        self.inputs = snapshot(world)

    def live(self, place: Path, moments: list[float]) -> Life:
        """One life, killed at these parts of its time."""
        chaos_world.copied(self.world, place)
        life = Life(self.name, moments)
        for moment in moments:
            pid = started(self.command, place)
            time.sleep(moment * self.seconds)
            os.kill(pid, signal.SIGKILL)
            late = ended(pid) != -signal.SIGKILL
            if moment == moments[0]:
                self.seconds *= 0.8 if late else 1.03  # so that one in eight comes too late, however busy the machine
            if late:
                life.late += 1
                break  # it is done
            life.kills += 1
        code = ended(started(self.command, place))
        life.wrong += [] if code == 0 else [f"it ended with code {code}"]
        found = digest(place / self.product, self.name)
        life.wrong += [f"{name} differs" for name in differences(found, self.wanted)]
        life.wrong += [f"{name} is left" for name in self.left(place)]
        life.wrong += [f"the input {name} was changed" for name in self.touched(place)]
        return life

    def left(self, place: Path) -> list[str]:
        """Temporary files that nobody swept away."""
        found = [path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()]
        return [name for name in found if re.search(r"\.tmp-|\.lock|\.old/|\.part$", name)]

    def touched(self, place: Path) -> list[str]:
        """Inputs that are not as they were; the product, and what an exam writes beside its own, are none."""
        aside = {"energy.svg", ".checked.json"}
        now = {Path(name).relative_to(place).as_posix(): value for name, value in snapshot(place).items()}
        before = {Path(name).relative_to(self.world).as_posix(): value for name, value in self.inputs.items()}
        inputs = {name for name in before if not name.startswith(self.product) and Path(name).name not in aside}
        return sorted(name for name in inputs if now.get(name) != before[name])


def lived(log: Path) -> list[Life]:
    """The lives that a log tells of; a last line that a kill cut short is left out."""
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True) if log.exists() else []
    return [Life(**json.loads(line)) for line in lines if line.endswith("\n")]


def summary(lives: list[Life], seconds: dict[str, float]) -> int:
    """Print what was wrong, and the table; returns the exit code."""
    for life in lives:
        if life.wrong:
            moments = [round(moment, 3) for moment in life.moments]
            print(f"{life.stage}, killed at {moments}: {'; '.join(life.wrong[:4])}")
    print(f"{'stage':<10}{'seconds':>9}{'lives':>7}{'kills':>7}{'too late':>10}{'wrong':>7}")
    for name, duration in seconds.items():
        mine = [life for life in lives if life.stage == name]
        sums = sum(life.kills for life in mine), sum(life.late for life in mine), sum(bool(life.wrong) for life in mine)
        print(f"{name:<10}{duration:>9.2f}{len(mine):>7}{sums[0]:>7}{sums[1]:>10}{sums[2]:>7}")
    wrong = sum(bool(life.wrong) for life in lives)
    print(f"{sum(life.kills for life in lives)} kills in {len(lives)} lives, {wrong} of which ended differently")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--only", choices=STAGES, help="one stage alone; `2 corpora` and `3 tokens` are made in parts")
    parser.add_argument("--log", type=Path, help="a line of JSON a life; one that is there is gone on with")
    given = parser.parse_args()
    names = [given.only] if given.only else list(STAGES)
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        home = Path(folder)
        log = given.log or home / "kills.jsonl"
        log.parent.mkdir(parents=True, exist_ok=True)
        lives = lived(log)
        log.write_text("".join(json.dumps(asdict(life)) + "\n" for life in lives), encoding="utf-8")
        world = chaos_world.make(home / "world")
        shutil.rmtree(world / "report")
        stages = [Stage(name, world, home) for name in names]
        while sum(life.kills for life in lives) < given.kills:
            first = len(lives) * KILLS + 1
            moments = [number * GOLDEN % 1.0 for number in range(first, first + KILLS)]
            lives.append(stages[len(lives) % len(stages)].live(home / "place", moments))
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(lives[-1])) + "\n")
        return summary(lives, {stage.name: stage.seconds for stage in stages})


if __name__ == "__main__":
    sys.exit(main())
