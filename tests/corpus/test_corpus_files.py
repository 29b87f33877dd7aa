"""Every reader gives back exactly the texts that were written, and says what is wrong with a broken file."""

import csv
import gzip
import io
import json
import lzma
import sys
from pathlib import Path
from types import ModuleType

import pytest

from local_hub import nobody, online, serving
from tsdfm.corpus.files import read_jsonl
from tsdfm.corpus.settings import SourceSettings
from tsdfm.corpus.source import clean, read, tidy
from tsdfm.corpus.wikitext import articles, spell
from tsdfm.errors import UserError

TEXTS = ["One\nline\r\nand another", "naïve café — \U0001f9ca e\u0301", "a\u2028b\x85c\x0cd", "tab\there \x00 nul"]


def rows(texts: list[str] = TEXTS, field: str = "text") -> bytes:
    return "".join(
        json.dumps({"id": i, field: t}, ensure_ascii=i % 2 == 0) + "\n" for i, t in enumerate(texts)
    ).encode()


def texts_of(source: SourceSettings | Path) -> list[str]:
    return [document.text for document in read(source)]


def zst(data: bytes) -> bytes:
    zstandard = pytest.importorskip("zstandard")
    return zstandard.ZstdCompressor().compress(data)


@pytest.mark.parametrize(
    ("ending", "pack"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress), (".zst", zst)]
)
def test_jsonl_in_every_packing(tmp_path: Path, ending: str, pack) -> None:
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(pack(rows()))
    assert texts_of(path) == TEXTS
    assert [d.origin for d in read(path)] == [f"a.jsonl{ending}:{n}" for n in range(1, 5)]


def test_zst_of_several_frames(tmp_path: Path) -> None:
    data, path = rows(TEXTS * 50), tmp_path / "a.jsonl.zst"
    path.write_bytes(b"".join(zst(data[i : i + 1000]) for i in range(0, len(data), 1000)))
    assert texts_of(path) == TEXTS * 50


@pytest.mark.parametrize(("ending", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress), (".zst", zst)])
def test_a_packed_file_cut_short_is_an_error(tmp_path: Path, ending: str, pack) -> None:
    path = tmp_path / f"a.jsonl{ending}"
    whole = pack(rows([str(n) * 50 for n in range(500)]))
    path.write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(UserError, match=r"a\.jsonl.* (damaged or cut short|not valid JSON)"):
        texts_of(path)


def table(delimiter: str = ",", texts: list[str] = TEXTS) -> str:
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter).writerows([["id", "text"], *enumerate(texts)])
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.csv", table().encode()),
        ("a.CSV.gz", gzip.compress(table().encode("utf-8-sig"))),
        ("a.tsv", table("\t").encode()),
        ("a.csv", table("\t").encode()),
    ],
)
def test_csv(tmp_path: Path, name: str, data: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert [(d.text, d.origin) for d in read(path)] == [(text, f"{name}:{n}") for n, text in enumerate(TEXTS, 1)]
    asked = read(SourceSettings(path=path, prompt="id"))
    assert [d.prompt for d in asked] == ["0", "1", "2", "3"]


def test_columns_may_end_at_semicolons(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id;text\n1;one, two\n2;"a;b"\n')
    assert texts_of(tmp_path) == ["one, two", "a;b"]


def test_a_csv_cell_may_hold_a_book(tmp_path: Path) -> None:
    book = "word " * 100_000
    (tmp_path / "a.csv").write_text(table(texts=[book]), newline="")
    assert texts_of(tmp_path) == [book]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("id,txt\n1,a\n", r"a\.csv, row 1 has no field 'text'; did you mean 'txt'"),
        ("id,text\n1,a\n2\n", r"a\.csv, row 2 has 1 cells where the header has 2"),
        ('id,text\n1,"a', r"a\.csv is no whole csv file \(unexpected end of data\)"),
    ],
)
def test_a_broken_csv_file_is_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(UserError, match=message):
        texts_of(tmp_path / "a.csv")


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"body": TEXTS, "n": [1, 2, 3, 4]}), tmp_path / "a.parquet")
    assert texts_of(SourceSettings(path=tmp_path / "a.parquet", field="body")) == TEXTS
    with pytest.raises(UserError, match="no column 'bodi'; did you mean 'body'"):
        texts_of(SourceSettings(path=tmp_path / "a.parquet", field="bodi"))
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="not a whole parquet file"):
        texts_of(SourceSettings(path=tmp_path / "a.parquet", field="body"))


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    for name, text in {"b/2.txt": "two\r\n", "b/10.md": "ten", "a.txt": "\ufefffirst", ".git/x.txt": "hidden"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(text.encode())
    (tmp_path / "notes.log").write_text("not text we know")
    (tmp_path / "empty.txt").write_text(" \n")
    found = list(read(tmp_path))
    assert [(d.origin, d.text) for d in found] == [("a.txt", "first"), ("b/10.md", "ten"), ("b/2.txt", "two\r\n")]
    assert texts_of(SourceSettings(path=tmp_path, limit=2)) == ["first", "ten"]
    assert texts_of(SourceSettings(path=tmp_path, repeat=2)) == ["first", "ten", "two\r\n"] * 2


def test_answers_may_be_numbers_and_neither_side_of_a_prompt_is_blank(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"q": "How many?", "a": {a}}}\n' for a in ("2", "0.5", "1e20", "0.00001")))
    found = [document.text for document in read_jsonl(path, "a", "q")]
    assert found == ["2", "0.5", "100000000000000000000", "0.00001"]  # without exponents, which no answer has
    path.write_text('{"q": "How many?", "a": NaN}\n')
    with pytest.raises(UserError, match="line 1: field 'a' holds nan, not text"):
        list(read_jsonl(path, "a", "q"))
    for row, blank in (('{"q": " ", "a": "2"}', "q"), ('{"q": "Why?", "a": ""}', "a")):
        path.write_text(f'{{"q": "One and one?", "a": "2"}}\n{row}\n')
        with pytest.raises(UserError, match=f"line 2: '{blank}' is blank"):
            list(read_jsonl(path, "a", "q"))


def test_cuts_of_a_text_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\r\ntwo\n\n\nthree\n")
    assert texts_of(SourceSettings(path=path, cut="lines")) == ["one", "two", "three"]
    assert texts_of(SourceSettings(path=path, cut="paragraphs")) == ["one\r\ntwo", "three"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text": "fine"}\n{"text": "cut', r"a\.jsonl, line 2 is not valid JSON"),
        (b'{"text": "fine"}\n\n{"txt": "x"}\n', r"line 3 has no field 'text'; did you mean 'txt'"),
        (b'{"text": null}\n', r"line 1: field 'text' holds nothing, not text"),
        (b'{"text": [5]}\n', r"line 1: field 'text' holds \[5\], not text"),
        (b'["text"]\n', r"line 1 is not a JSON object"),
        (b'{"text": "\xff"}\n', r"a\.jsonl is not UTF-8 text \(byte 0xff\): .*iconv -f latin1 "),
        ('{"text": "a"}\n'.encode("utf-16"), r"a\.jsonl is not UTF-8 text \(byte 0xff\): .*iconv -f utf-16 "),
    ],
)
def test_broken_lines_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(UserError, match=message):
        texts_of(tmp_path / "a.jsonl")


def test_wrong_paths_are_answered(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no file or folder at"):
        texts_of(tmp_path / "nowhere")
    with pytest.raises(UserError, match="nothing to read in"):
        texts_of(tmp_path)
    (tmp_path / "a.bin").write_text("x")
    with pytest.raises(UserError, match="set kind to"):
        texts_of(tmp_path / "a.bin")
    assert texts_of(SourceSettings(path=tmp_path / "a.bin", kind="text")) == ["x"]
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match="is a link to a file that is not there"):
        texts_of(tmp_path)
    (tmp_path / "gone.txt").unlink()
    (tmp_path / "a.txt").write_text("y")
    with pytest.raises(UserError, match=r"no file of kind csv in .*: leave kind out"):
        texts_of(SourceSettings(path=tmp_path, kind="csv"))
    with pytest.raises(UserError, match="either path"):
        SourceSettings()


@pytest.mark.parametrize(
    ("module", "name", "extra"), [("pyarrow", "a.parquet", "parquet"), ("zstandard", "a.jsonl.zst", "zstd")]
)
def test_a_missing_extra_names_what_to_install(tmp_path: Path, monkeypatch, module: str, name: str, extra: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf"pip install 'tsdfm\[{extra}\]'"):
        texts_of(tmp_path / name)


def test_fields_can_be_joined(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"question": "1+1?", "answer": "2"}\n')
    assert texts_of(SourceSettings(path=tmp_path / "a.jsonl", field="question+answer")) == ["1+1?\n2"]


def test_half_a_surrogate_pair_becomes_the_replacement_character(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a\\ud800b \\ud83d\\ude00"}\n')
    assert texts_of(tmp_path / "a.jsonl") == ["a\ufffdb \U0001f600"]
    assert clean("as it was") == "as it was"


def test_hub_datasets_by_alias_and_by_name(tmp_path: Path, monkeypatch) -> None:
    calls = []

    def load_dataset(dataset, config, *, split, streaming):
        calls.append((dataset, config, split, streaming))
        if dataset == "nobody/nothing":
            raise FileNotFoundError("no such dataset\nsecond line")
        lines = [" = One = \n", "", " Text , one . \n", "", " = Two = \n", "", " Text , two . \n"]
        return iter([{"text": line} for line in lines])

    fake = ModuleType("datasets")
    fake.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", fake)
    with serving({}) as address:
        online(monkeypatch, address, tmp_path)
        whole = texts_of(SourceSettings(name="wikitext-103"))
        assert whole == ["= One =\n\nText, one.", "= Two =\n\nText, two."]
        assert len(texts_of(SourceSettings(name="fineweb-edu", limit=3))) == 3
        assert calls[0] == ("Salesforce/wikitext", "wikitext-103-raw-v1", "train", True)
        assert calls[1][:2] == ("HuggingFaceFW/fineweb-edu", "sample-10BT")
        with pytest.raises(UserError, match=r"could not read nobody/nothing .*no such dataset\): check"):
            texts_of(SourceSettings(name="nobody/nothing"))
    online(monkeypatch, nobody(), tmp_path)
    with pytest.raises(UserError, match=r"could not read fineweb-edu from the hub, as the hub cannot be reached: "):
        texts_of(SourceSettings(name="fineweb-edu"))
    assert len(calls) == 3  # nothing more was asked of datasets, which would try for minutes
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"tsdfm\[hub\]"):
        texts_of(SourceSettings(name="fineweb-edu"))


def test_wikitext_spelling_and_titles() -> None:
    assert (
        spell(' 1 @,@ 000 ( ten @-@ fold ) , " quoted " ; it \'s 5 @.@ 5 % . ')
        == '1,000 (ten-fold), "quoted"; it\'s 5.5%.'
    )
    lines = ["", " = A = ", "", " x = 5 = y ", " = 7 = ", " = = Sub = = ", "", " = B = ", "", " z "]
    assert list(articles(lines)) == ["= A =\n\nx = 5 = y\n= 7 =\n== Sub ==", "= B =\n\nz"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a\r\n\r\n  b \n\n\n c\r", "a\nb\nc"),
        ("‘I’m’ “here”…", "'I'm' \"here\"..."),
        ("well -- yes—no — and ---- stays", "well—yes—no—and ---- stays"),
        ("two  spaces,\ta tab,\xa0a hard\xad space\ufeff", "two spaces, a tab, a hard space"),
    ],
)
def test_tidy_text_has_one_way_to_write_each_thing(text: str, wanted: str) -> None:
    assert tidy(text) == wanted
    assert tidy(wanted) == wanted


def test_a_source_is_tidied_only_if_asked(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("“One”\r\n\r\ntwo".encode())
    assert texts_of(SourceSettings(path=tmp_path)) == ["“One”\r\n\r\ntwo"]
    assert texts_of(SourceSettings(path=tmp_path, tidy=True)) == ['"One"\ntwo']


def test_lines_that_match_are_left_out_and_so_are_texts_with_none_left(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One.\nSee https://example.org/x\nTwo.\n")
    (tmp_path / "b.txt").write_text("http://example.org\n")
    assert texts_of(SourceSettings(path=tmp_path, drop="https?://")) == ["One.\nTwo.\n"]
    with pytest.raises(UserError, match="no regular expression"):
        SourceSettings(path=tmp_path, drop="(")
