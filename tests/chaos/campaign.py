"""The campaign: every root of trouble, tried on a small world. `make chaos` runs it; nothing in it is left to chance.

    python tests/chaos/campaign.py                  # at least 600 cases, a few minutes on two cores
    python tests/chaos/campaign.py --stride 1       # every case there is: an hour
    python tests/chaos/campaign.py --only recipes   # those whose root or name has this word

It ends with a table of roots and outcomes, and with code 1 where any case did not end well.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import chaos_files
import chaos_outside
import chaos_settings
import chaos_silent
import chaos_world
from chaos_outside import Process, run_anew, run_process
from chaos_run import Case, Outcome, try_case

MODULES = (chaos_settings, chaos_silent, chaos_outside, chaos_files)
MANY = {"schema": 12, "json": 4, "numbers": 4, "paths": 2}
"""Of roots with thousands of cases, every so many is tried."""


def gathered(world: Path, stride: int | None = None) -> list[Case]:
    """The cases of all roots; of those with very many, every `stride`-th (none: as many as take minutes)."""
    found = list[Case]()
    every = (case for module in MODULES for case in module.cases(world))
    for root, some in itertools.groupby(every, key=lambda case: case.root):
        found += list(some)[:: stride or MANY.get(root, 1)]
    return found


def tried(case: Case, world: Path, place: Path) -> Outcome:
    """How a case ended."""
    if not isinstance(case, Process):
        return try_case(case, world, place)
    chaos_world.copied(world, place)
    return run_process(case, place) if case.interrupt_after is None else run_anew(case, place)


def work(cases: list[Case], numbers: list[int], world: Path, home: Path, log: Path) -> None:
    """Try some cases, and write down how each ended."""
    with log.open("w", encoding="utf-8") as file:
        for number in numbers:
            begin = time.monotonic()
            outcome = tried(cases[number], world, home / "place")
            line = {"number": number, "kind": outcome.kind, "said": outcome.said[-2000:], "s": time.monotonic() - begin}
            file.write(json.dumps(line) + "\n")
            file.flush()


def share_out(cases: list[Case], world: Path, home: Path, workers: int) -> Iterator[dict[str, object]]:
    """Try the cases by several processes at once; what a process leaves undone, as it died, counts as lost."""
    children = {}
    for worker in range(workers):
        mine = [number for number in range(len(cases)) if number % workers == worker]
        log, place = home / f"{worker}.jsonl", home / str(worker)
        place.mkdir()
        pid = os.fork()
        if pid == 0:
            try:
                work(cases, mine, world, place, log)
            finally:
                os._exit(0)
        children[pid] = (mine, log)
    for pid, (mine, log) in children.items():
        os.waitpid(pid, 0)
        done = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        yield from done
        if len(done) < len(mine):
            yield {"number": mine[len(done)], "kind": "hang, or the end of the process", "said": "", "s": 0.0}


def report(cases: list[Case], found: list[dict[str, object]], seconds: float) -> int:
    """Print what did not end well, and the table; returns the exit code."""
    counts, roots = Counter[tuple[str, str]](), list(dict.fromkeys(case.root for case in cases))
    bad = 0
    for line in sorted(found, key=lambda line: int(str(line["number"]))):
        case, kind = cases[int(str(line["number"]))], str(line["kind"])
        counts[case.root, kind.split()[0]] += 1
        if kind != "well":
            bad += 1
            last = str(line["said"]).strip().splitlines()[-1:]
            print(f"{kind}: {case.root}, {case.name}\n    {' '.join(case.words)[:160]}\n    {''.join(last)[:200]}")
    kinds = ["well", *sorted({kind for _, kind in counts} - {"well"})]
    print(f"\n{'root':<10}" + "".join(f"{kind:>12}" for kind in kinds))
    for root in roots:
        print(f"{root:<10}" + "".join(f"{counts[root, kind]:>12}" for kind in kinds))
    total = [sum(counts[root, kind] for root in roots) for kind in kinds]
    print(f"{'all':<10}" + "".join(f"{number:>12}" for number in total))
    print(f"{sum(total)} cases in {seconds:.0f} s, {bad} of them not well")
    return 1 if bad else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stride", type=int, help="try every so many cases of each root")
    parser.add_argument("--only", default="", help="cases whose root or name has this word")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        home = Path(folder)
        world = chaos_world.make(home / "world")
        cases = [case for case in gathered(world, given.stride) if given.only in f"{case.root} {case.name}"]
        print(f"{len(cases)} cases", flush=True)
        found = list(share_out(cases, world, home, given.workers))
        return report(cases, found, time.monotonic() - begin)


if __name__ == "__main__":
    sys.exit(main())
