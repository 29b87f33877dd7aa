"""`python -m benchmarks NAME [settings]`."""

import sys

from tsdfm.cli import Verb, load, read, share_cores
from tsdfm.errors import UserError
from tsdfm.settings import nearest

VERBS = {
    "checkpoint": Verb("benchmarks.checkpoint:CheckpointBenchmark", "benchmarks.checkpoint:run", "a large file"),
    "compass": Verb("benchmarks.compass:CompassBenchmark", "benchmarks.compass:run", "the compass's training step"),
    "all": Verb("benchmarks.everything:AllBenchmarks", "benchmarks.everything:run", "all of them, within a time limit"),
    "growth": Verb("benchmarks.growth:GrowthBenchmark", "benchmarks.growth:run", "how a step's cost grows"),
    "kernels": Verb("benchmarks.kernels:KernelBenchmark", "benchmarks.kernels:run", "kernels against their floor"),
    "loader": Verb("benchmarks.loader:LoaderBenchmark", "benchmarks.loader:run", "tokens a second from the page cache"),
    "processes": Verb("benchmarks.processes:ProcessBenchmark", "benchmarks.processes:run", "64 processes, then 48"),
    "matching": Verb("benchmarks.matching:MatchingBenchmark", "benchmarks.matching:run", "IDLM's training step"),
    "sampling": Verb("benchmarks.sampling:SamplingBenchmark", "benchmarks.sampling:run", "few steps or many"),
    "serve": Verb("benchmarks.serve:ServeBenchmark", "benchmarks.serve:run", "the server under load"),
    "soak": Verb("benchmarks.soak:Soak", "benchmarks.soak:run", "the server for a while, every answer checked"),
    "text": Verb("benchmarks.text:TextBenchmark", "benchmarks.text:run", "corpus and tokens against the tokenizer"),
    "teacher": Verb("benchmarks.teacher:TeacherBenchmark", "benchmarks.teacher:run", "the teacher's training step"),
    "student": Verb("benchmarks.student:StudentBenchmark", "benchmarks.student:run", "the distillation step"),
}


def main(words: list[str]) -> int:
    """Run one benchmark."""
    share_cores()
    try:
        if not words or words[0] not in VERBS:
            raise UserError(f"name a benchmark{nearest(words[0] if words else '', VERBS)}")
        verb = VERBS[words[0]]
        load(verb.run)(read(words[0], verb, words[1:]))
    except UserError as problem:
        print(f"benchmarks: {problem}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
