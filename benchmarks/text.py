"""The corpus and tokens stages on generated text, against the tokenizer alone: `python -m benchmarks text`.

The text is words of a made-up language by Zipf's law, in files of jsonl. Each stage runs in a process of its own, in
`parts` one after another, so that its peak memory is its own. The tokenizer alone encodes the same texts from memory on
as many threads, and neither reads nor writes; it is measured before and after. Beside the clock stands CPU time, which
other work on the machine disturbs less.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from benchmarks.harness import say
from tsdfm.corpus import CorpusSettings
from tsdfm.corpus.run import run as make_corpus
from tsdfm.errors import UserError
from tsdfm.settings import Settings, option
from tsdfm.store.files import write_json
from tsdfm.tokens import TokensSettings
from tsdfm.tokens.bpe import train_bpe
from tsdfm.tokens.encode import chunks, cores
from tsdfm.tokens.run import run as make_tokens
from tsdfm.tokens.tokenizer import ByteTokenizer, load_tokenizer

SAMPLE = 40_000_000  # characters that the tokenizer alone encodes


@dataclass(frozen=True, kw_only=True)
class TextBenchmark(Settings):
    """How much text, in how many parts."""

    gigabytes: float = option(2.0, "of text, a thousand million bytes each", above=0)
    parts: int = option(1, "parts that each stage is made in", low=1)
    vocab: int = option(8192, "tokens of the BPE", low=300)
    tokenizer: Literal["bpe", "byte", "none"] = option(
        "bpe", "of the tokens stage; byte: the stage without the cost of a tokenizer; none: the corpus alone"
    )
    seed: int = option(0, "of the text")
    home: Path | None = option(None, "folder for it all, which is removed afterwards; none: the system's")
    out: Path | None = option(None, "file for the figures as JSON")


class Cost(NamedTuple):
    """Seconds by the clock, CPU seconds, and the peak of resident memory in MiB."""

    clock: float
    cpu: float
    peak: float


def run(settings: TextBenchmark) -> None:
    """Generate, measure, say."""
    with tempfile.TemporaryDirectory(prefix="tsdfm-text-", dir=settings.home) as place:
        home = Path(place)
        size = generate(home / "texts", int(settings.gigabytes * 1e9), settings.seed)
        found: dict[str, Any] = {"bytes": size, "parts": settings.parts, "cores": cores()}
        found["corpus"] = told("corpus", size, [measured(corpus_part, home, p) for p in parts(settings)])
        if settings.tokenizer == "byte":
            ByteTokenizer().save(home / "tokenizer")
            found["tokens"] = told("tokens", size, [measured(tokens_part, home, p) for p in parts(settings)])
        if settings.tokenizer == "bpe":
            texts = [*sample(home / "texts")]
            train_bpe(texts[::20], settings.vocab).save(home / "tokenizer")
            before = alone(home, texts)
            found["tokens"] = told("tokens", size, [measured(tokens_part, home, p) for p in parts(settings)])
            after = alone(home, texts)
            found["tokenizer alone"] = both = {k: (before[k] + after[k]) / 2 for k in before}
            say(f"tokenizer alone: {both['clock']:.1f} MB a second by the clock, {both['cpu']:.1f} a CPU second")
            shares = {key: found["tokens"][key] / both[key] for key in both}
            say(
                f"the tokens stage has {shares['clock']:.0%} of its speed by the clock, {shares['cpu']:.0%} by CPU time"
            )
    if settings.out is not None:
        write_json(settings.out, found)


def parts(settings: TextBenchmark) -> list[str | None]:
    return [None] if settings.parts == 1 else [f"{i}/{settings.parts}" for i in range(settings.parts)]


def told(name: str, size: int, costs: list[Cost]) -> dict[str, float]:
    """What a stage cost, said and returned: MB a second by the clock and by CPU time, and the peak of memory."""
    clock, cpu, peak = sum(c.clock for c in costs), sum(c.cpu for c in costs), max(c.peak for c in costs)
    say(f"{name}: {size / 1e9:.2f} GB in {clock:.0f} s, {size / clock / 1e6:.1f} MB a second by the clock, "
        f"{size / cpu / 1e6:.1f} a CPU second, {peak:.0f} MiB at the peak")  # fmt: skip
    return {"clock": size / clock / 1e6, "cpu": size / cpu / 1e6, "peak": peak}


def generate(folder: Path, size: int, seed: int) -> int:
    """Files of documents; returns the bytes of their texts."""
    folder.mkdir()
    rng = np.random.default_rng(seed)
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    words = np.array(["".join(rng.choice(letters, rng.integers(2, 10))) for _ in range(50_000)])
    law = 1.0 / np.arange(1, len(words) + 1)
    drawn = rng.choice(words, 4_000_000, p=law / law.sum())
    cuts = np.cumsum(rng.integers(50, 700, len(drawn) // 375))
    bodies = [" ".join(part) for part in np.split(drawn, cuts[cuts < len(drawn)])]
    written, number = 0, 0
    while written < size:
        with (folder / f"{number:05d}.jsonl").open("w") as file:
            for place, body in enumerate(bodies):
                text = f"{number} {place} {body}."
                file.write(f'{{"text": "{text}"}}\n')
                written += len(text)
                if written >= size:
                    break
        number += 1
    return written


def sample(folder: Path) -> Iterator[str]:
    """The first texts, about `SAMPLE` characters of them."""
    seen = 0
    for path in sorted(folder.iterdir()):
        with path.open() as file:
            for line in file:
                text = json.loads(line)["text"]
                seen += len(text)
                if seen > SAMPLE:
                    return
                yield text


def alone(home: Path, texts: list[str]) -> dict[str, float]:
    """MB a second of the tokenizer on texts in memory, on a thread for each core, by the clock and by CPU time."""
    tokenizer = load_tokenizer(home)
    size, groups = sum(map(len, texts)), [*chunks(texts)]
    clock, cpu = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(cores()) as pool:
        for _ in pool.map(partial(tokenizer.encode_arrays, dtype=np.uint16), groups):
            pass
    return {
        "clock": size / (time.perf_counter() - clock) / 1e6,
        "cpu": size / (time.process_time() - cpu) / 1e6,
    }


def corpus_part(home: Path, part: str | None) -> None:
    make_corpus(CorpusSettings(path=home / "texts", out=home / "corpus", part=part))


def tokens_part(home: Path, part: str | None) -> None:
    make_tokens(
        TokensSettings(corpus=home / "corpus", tokenizer_files=home, out=home / "tokens", length=1024, part=part)
    )


def measured(work: Any, home: Path, part: str | None) -> Cost:
    """Run a part in a process of its own."""
    context = multiprocessing.get_context("spawn")
    costs = context.Queue()
    process = context.Process(target=_measure, args=(work, home, part, costs))
    process.start()
    process.join()
    if process.exitcode:
        raise UserError(f"{work.__name__} failed with code {process.exitcode}")
    return Cost(*costs.get(timeout=10))


def _measure(work: Any, home: Path, part: str | None, costs: Any) -> None:
    clock, cpu = time.perf_counter(), time.process_time()
    work(home, part)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    costs.put((time.perf_counter() - clock, time.process_time() - cpu, peak))
