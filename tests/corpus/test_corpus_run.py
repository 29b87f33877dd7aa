"""The corpus stage: mixtures, splits, and a folder that is there whole or not at all."""

import errno
import json
from collections import Counter
from pathlib import Path

import pytest

from tsdfm.corpus import CorpusSettings, SourceSettings, count_documents, read_split
from tsdfm.corpus.files import Document
from tsdfm.corpus.mixture import mix
from tsdfm.corpus.run import run
from tsdfm.corpus.split import split_of
from tsdfm.corpus.store import SplitWriter
from tsdfm.errors import UserError
from tsdfm.settings import build
from tsdfm.store.manifest import read_manifest


def stream(name: str, sizes: list[int]):
    return iter([Document(name * size, f"{name}:{i}") for i, size in enumerate(sizes)])


def write_jsonl(path: Path, texts) -> Path:
    path.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    return path


def test_a_mixture_keeps_its_weights_at_every_moment() -> None:
    sizes = [[7, 90, 31, 4] * 200, [50] * 800, [1, 2, 3] * 800]
    weights = [5.0, 3.0, 2.0]
    taken, longest = [0, 0, 0], 90
    for n, (source, document) in enumerate(mix([stream("abc"[i], s) for i, s in enumerate(sizes)], weights)):
        taken[source] += len(document.text)
        total = sum(taken)
        if n > 50:
            for got, weight in zip(taken, weights, strict=True):
                assert abs(got - total * weight / 10) <= longest
    assert n > 500


def test_a_mixture_stops_with_the_first_source_or_goes_on_with_the_rest() -> None:
    def order(stop):
        return "".join(d.text for _, d in mix([stream("a", [1] * 2), stream("b", [1] * 5)], [1, 1], stop))

    assert order("first") == "abab"
    assert order("all") == "ababbbb"


def test_the_split_is_a_matter_of_the_text_alone() -> None:
    texts = [f"document {i}" for i in range(20_000)]
    held = {t for t in texts if split_of(t, 0.05) == "valid"}
    assert abs(len(held) - 1000) < 5 * (20_000 * 0.05 * 0.95) ** 0.5
    assert held <= {t for t in texts if split_of(t, 0.1) == "valid"}
    assert held != {t for t in texts if split_of(t, 0.05, seed=1) == "valid"}
    assert not any(split_of(t, 0.0) == "valid" for t in texts)


def test_no_text_is_in_two_splits_and_other_files_move_none(tmp_path: Path) -> None:
    texts = [f"text {i % 700}" for i in range(1000)]  # 300 texts come twice
    one = write_jsonl(tmp_path / "one.jsonl", texts)
    two = write_jsonl(tmp_path / "two.jsonl", reversed(texts[:900]))
    other = write_jsonl(tmp_path / "other.jsonl", [f"other {i}" for i in range(500)])
    a = run(CorpusSettings(out=tmp_path / "a", path=one, valid=0.1))
    both = (SourceSettings(path=other), SourceSettings(path=two))
    b = run(CorpusSettings(out=tmp_path / "b", sources=both, valid=0.1, stop="all"))
    train, valid = (set(read_split(a, s)) for s in ("train", "valid"))
    assert valid
    assert not train & valid
    assert train | valid == set(texts)
    assert {t for t in read_split(b, "valid") if t.startswith("text")} <= valid
    assert {t for t in read_split(b, "train") if t.startswith("text")} <= train


def words(number: int, count: int) -> str:
    return " ".join(f"word{number}-{i}" for i in range(count))


def test_a_few_files_hold_out_one_and_no_share_holds_out_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts").mkdir()
    for i in range(12):
        (tmp_path / "texts" / f"{i:02d}.txt").write_text(words(i, 100))
    texts = {words(i, 100) for i in range(12)}
    assert not any(split_of(text, 0.01) == "valid" for text in texts)  # by chance alone nothing would be
    out = run(CorpusSettings(out=tmp_path / "out", path=tmp_path / "texts"))
    (held,) = read_split(out, "valid")
    assert {*read_split(out, "train"), held} == texts
    assert held not in set(read_split(out, "train"))
    assert held == next(text for share in range(1, 101) for text in texts if split_of(text, share / 100) == "valid")
    assert read_manifest(out)["splits"]["valid"]["characters"] == len(held)
    assert [count_documents(out, split) for split in ("train", "valid")] == [11, 1]
    assert [path.name for path in sorted(out.iterdir())] == ["manifest.json", "train.jsonl.gz", "valid.jsonl.gz"]
    said = capsys.readouterr().err
    left = sum(map(len, texts)) - len(held)
    assert (
        f"corpus: 11 documents, {left / 1e3:.1f}k characters, and 1 document held out ({len(held)} characters) → "
        in said
    )
    none = run(CorpusSettings(out=tmp_path / "none", path=tmp_path / "texts", valid=0.0))
    assert [count_documents(none, split) for split in ("train", "valid")] == [12, 0]
    assert ", and nothing held out → " in capsys.readouterr().err


@pytest.mark.parametrize(("valid", "share"), [(0.01, 0.1), (0.4, 0.4)])
@pytest.mark.parametrize("copies", [1, 3])
def test_of_the_only_text_the_end_is_held_out(tmp_path: Path, valid: float, share: float, copies: int) -> None:
    whole = words(0, 500)
    source = SourceSettings(path=write_jsonl(tmp_path / "book.jsonl", [whole]), repeat=copies)
    out = run(CorpusSettings(out=tmp_path / "out", sources=(source,), valid=valid))
    train, held = set(read_split(out, "train")), set(read_split(out, "valid"))
    assert [f"{train.pop()} {held.pop()}", train, held] == [whole, set(), set()]  # cut between words
    counts = read_manifest(out)["splits"]
    assert counts["valid"]["documents"] == counts["train"]["documents"] == copies
    assert counts["valid"]["characters"] / copies / len(whole) == pytest.approx(share, abs=0.01)
    assert counts == {split: {**counts[split], **read_manifest(out)["sources"][0][split]} for split in counts}


def test_the_only_text_is_cut_whichever_split_chance_had_it_in(tmp_path: Path) -> None:
    lucky = next(text for text in (words(i, 40) for i in range(10_000)) if split_of(text, 0.01) == "valid")
    out = run(CorpusSettings(out=tmp_path / "out", path=write_jsonl(tmp_path / "a.jsonl", [lucky])))
    assert [" ".join([*read_split(out, "train"), *read_split(out, "valid")])] == [lucky]


def test_a_text_that_is_most_of_a_corpus_is_not_lost_to_training(tmp_path: Path) -> None:
    texts = [words(i, 3000 if i == 3 else 2) for i in range(12)]
    big = next(seed for seed in range(1000) if [t for t in texts if split_of(t, 0.05, seed) == "valid"] == [texts[3]])
    out = run(CorpusSettings(out=tmp_path / "out", path=write_jsonl(tmp_path / "a.jsonl", texts), valid=1e-9, seed=big))
    (held,) = read_split(out, "valid")
    assert texts[3].endswith(held)
    assert 2000 <= len(held) < 2100
    assert count_documents(out, "train") == 12


def test_counts_hashes_and_bytes_are_the_same_every_time(tmp_path: Path) -> None:
    long = write_jsonl(tmp_path / "long.jsonl", [f"{i} " * 40 for i in range(300)])
    short = write_jsonl(tmp_path / "short.jsonl", [f"{i}\r\n" for i in range(3000)])
    sources = (SourceSettings(path=long, weight=3), SourceSettings(path=short, weight=1))
    made = [run(CorpusSettings(out=tmp_path / name, sources=sources, valid=0.05)) for name in "ab"]
    assert (made[0] / "train.jsonl.gz").read_bytes() == (made[1] / "train.jsonl.gz").read_bytes()
    manifest = read_manifest(made[0])
    for split in ("train", "valid"):
        texts = list(read_split(made[0], split))
        assert manifest["splits"][split]["documents"] == len(texts) == count_documents(made[0], split)
        assert manifest["splits"][split]["characters"] == sum(map(len, texts))
    by_source = [sum(s[split]["characters"] for split in ("train", "valid")) for s in manifest["sources"]]
    assert by_source[0] == pytest.approx(3 * by_source[1], abs=500)
    assert list(read_split(made[0], "train", start=7)) == list(read_split(made[0], "train"))[7:]


def test_a_finished_corpus_is_kept_and_a_different_one_is_not_overwritten(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ["one", "two", "three"])
    settings = CorpusSettings(out=tmp_path / "out", path=path, valid=0)
    run(settings)
    before = (tmp_path / "out" / "manifest.json").stat().st_mtime_ns
    run(settings)
    assert (tmp_path / "out" / "manifest.json").stat().st_mtime_ns == before
    with pytest.raises(UserError, match="other settings"):
        run(CorpusSettings(out=tmp_path / "out", path=path, valid=0.5))
    write_jsonl(path, ["one", "two", "three", "four"])
    with pytest.raises(UserError, match="other settings or texts"):
        run(settings)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="in the way"):
        run(CorpusSettings(out=tmp_path / "mine", path=path))
    with pytest.raises(UserError, match="lies inside the source"):
        run(CorpusSettings(out=tmp_path / "mine" / "out", path=tmp_path / "mine"))


@pytest.mark.parametrize(
    ("texts", "why"), [([" ", "\n"], "no document has any text"), (["only"], "all 1 documents were held")]
)
def test_an_empty_corpus_is_an_error_and_leaves_nothing(tmp_path: Path, texts: list[str], why: str) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", texts)
    with pytest.raises(UserError, match=f"the corpus is empty \\({why}"):
        run(CorpusSettings(out=tmp_path / "out", path=path, valid=0.999999))
    assert [p.name for p in tmp_path.iterdir()] == ["a.jsonl"]


@pytest.mark.parametrize("problem", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_full_disk_or_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch, problem: BaseException) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [str(i) for i in range(100)])
    calls = Counter()

    def write(self, document):
        calls["write"] += 1
        if calls["write"] == 50:
            raise problem

    monkeypatch.setattr(SplitWriter, "write", write)
    expected = UserError if isinstance(problem, OSError) else KeyboardInterrupt
    with pytest.raises(expected):
        run(CorpusSettings(out=tmp_path / "out", path=path))
    assert [p.name for p in tmp_path.iterdir()] == ["a.jsonl"]


def test_the_story_world_is_a_source(tmp_path: Path) -> None:
    out = run(CorpusSettings(out=tmp_path / "out", name="world", limit=200, seed=3, valid=0.1))
    manifest = read_manifest(out)
    assert sum(s["documents"] for s in manifest["splits"].values()) == 200
    with pytest.raises(UserError, match="give limit"):
        run(CorpusSettings(out=tmp_path / "other", name="world"))


def test_settings_from_a_recipe_and_wrong_ones(tmp_path: Path) -> None:
    table = {"out": str(tmp_path), "sources": [{"path": "a", "weight": 2}, {"name": "fineweb-edu", "limit": 10}]}
    assert [s.label for s in build(CorpusSettings, table).all_sources()] == ["a", "fineweb-edu"]
    with pytest.raises(UserError, match="no source"):
        CorpusSettings(out=tmp_path).all_sources()
    with pytest.raises(UserError, match="not both"):
        CorpusSettings(out=tmp_path, path=tmp_path, sources=(SourceSettings(name="world"),)).all_sources()
    with pytest.raises(UserError, match="weight"):
        SourceSettings(name="world", weight=0)
    with pytest.raises(UserError, match="valid must be at least 0 and below 1"):
        CorpusSettings(out=tmp_path, valid=1.0)
