"""What is given and what comes back: lists of prefixes, files, stdin, JSON, and passes as they come."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from tiny_nets import save_run, tiny_spec, tiny_velocity

from tsdfm.cli import main
from tsdfm.errors import UserError
from tsdfm.samples.model import TextModel
from tsdfm.samples.prefixes import read_prefixes
from tsdfm.samples.run import show_texts
from tsdfm.samples.written import Moment, Samples
from tsdfm.tokens.tokenizer import ByteTokenizer
from tsdfm.view.stream import Screen

BYTES = ByteTokenizer()
PREFIXES = ["Mia", "Tom has", "Mia"]


def tiny_model(**spec: Any) -> TextModel:
    return TextModel(tiny_velocity(tiny_spec(**spec)), BYTES, "teacher")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prompts") / "run"
    save_run(folder, tiny_spec(source="uniform"))
    return folder


@pytest.mark.parametrize("source", ["uniform", "mask"])
def test_a_list_of_prefixes(source: str) -> None:
    """n of each in order; text j of the p-th has the number p·n + j, and is what it would be alone."""
    model = tiny_model(source=source)
    made = model.sample(n=2, steps=4, seed=3, prefix=PREFIXES)
    assert made.prefix == ["Mia", "Mia", "Tom has", "Tom has", "Mia", "Mia"]
    assert all(text.startswith(prefix) for text, prefix in zip(made.texts, made.prefix, strict=True))
    assert made.texts[0] != made.texts[4]  # the same prefix, another number
    for p, prefix in enumerate(PREFIXES):
        alone = model.sample(n=2, steps=4, seed=3, prefix=prefix, first=2 * p)
        assert torch.equal(alone.tokens, made.tokens[2 * p : 2 * p + 2])
    for again in ({"batch": 4}, {"batch": 1}, {"prefix": None, "prompts": PREFIXES}):
        assert model.sample(**{"n": 2, "steps": 4, "seed": 3, "prefix": PREFIXES, **again}).texts == made.texts
    filled = model.sample(steps=4, infill=["a{2}b", "{1}c"])
    assert [chr(row[place]) for row, place in zip(filled.tokens.tolist(), (4, 2), strict=True)] == ["b", "c"]
    assert model.sample(n=2, steps=4, seed=3, prefix=PREFIXES, trajectory=True).texts == made.texts


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"prefix": []}, "the list of prefixes is empty"),
        ({"prefix": ["a", 3]}, "prefixes are texts, not int"),
        ({"prefix": b"Mia"}, "prefixes are texts, not int"),
        ({"prefix": "a", "prompts": "b"}, "another word for prefix"),
        ({"prompts": []}, "the list of prompts is empty"),
        ({"prefix": ["a"], "infill": ["{1}"]}, "either a prefix or an infill"),
    ],
)
def test_what_makes_no_sense(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        tiny_model().sample(**given)


@pytest.mark.parametrize("how", [{}, {"guide": None, "batch": 2}, {"trajectory": True}])
def test_passes_as_they_come(how: dict[str, Any]) -> None:
    """The last moment of each text is the text, and watching changes nothing."""
    model, seen = tiny_model(source="uniform"), list[Moment]()
    made = model.sample(n=3, steps=4, seed=1, prefix="Mia", on_pass=seen.append, **how)
    assert made.texts == model.sample(n=3, steps=4, seed=1, prefix="Mia").texts
    assert {(moment.passes, moment.of, moment.t) for moment in seen} == {(k, 4, k / 4) for k in range(1, 5)}
    for number, text in enumerate(made.texts):
        of_it = [m.texts[m.numbers.index(number)] for m in seen if number in m.numbers]
        assert len(of_it) == 4
        assert of_it[-1] == text
        assert all(state.startswith("Mia") for state in of_it)


def test_files_of_prefixes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, lines = tmp_path / "plain.txt", tmp_path / "lines"
    plain.write_text('Mia has \n\n{"Tom"\r\n"Ben"\n', encoding="utf-8")
    assert read_prefixes(plain) == read_prefixes(str(plain)) == ["Mia has ", '{"Tom"', '"Ben"']
    lines.write_text('{"prefix": "Mia\\n"}\n{"prompt": "Tom"}\n{"text": "", "n": 1}\n', encoding="utf-8")
    assert read_prefixes(lines) == ["Mia\n", "Tom", ""]
    lines.write_text('{"prefix": "Mia"}\n{"prefix": "Tom"}\n', encoding="utf-8-sig")
    assert read_prefixes(lines) == ["Mia", "Tom"]
    lines.rename(tmp_path / "lines.jsonl").write_text("{bad\n", encoding="utf-8")
    with pytest.raises(UserError, match="line 1: expected a JSON object"):
        read_prefixes(tmp_path / "lines.jsonl")
    monkeypatch.setattr("sys.stdin", io.StringIO("\ufeffMia\nTom\n"))
    assert read_prefixes("-") == ["Mia", "Tom"]
    with pytest.raises(UserError, match=r"make a \.txt or \.jsonl file of it"):
        read_prefixes(tmp_path / "a.csv")
    lines.write_text("Zoë", encoding="latin-1")
    with pytest.raises(UserError, match="is not UTF-8 text: convert it"):
        read_prefixes(lines)
    for text, said in (
        ("\n", "holds no text"),
        ('{"prefix": "a"}\nb\n', "line 2: expected"),
        ('{"a": 1}', "line 1: exp"),
    ):
        lines.write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=said):
            read_prefixes(lines)
    with pytest.raises(UserError, match="no file at"):
        read_prefixes(tmp_path / "nowhere")


def spoken(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(words) == 0
    return capsys.readouterr().out


def test_prompts_and_json_on_the_command_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["sample", str(run), "--device", "cpu", "--n", "2", "--steps", "2", "--seed", "4"]
    made = json.loads(
        spoken([*words, "--json", "--prompt", "Mia", "--prefix", "Tom ", "--out", str(tmp_path / "o")], capsys)
    )
    assert (made["nfe"], made["seed"]) == (2, 4)
    assert [(text["index"], text["prefix"]) for text in made["texts"]] == [
        (0, "Mia"),
        (1, "Mia"),
        (2, "Tom "),
        (3, "Tom "),
    ]
    assert all(text["text"].startswith(text["prefix"]) for text in made["texts"])
    assert [json.loads(line) for line in (tmp_path / "o").read_text(encoding="utf-8").splitlines()] == made["texts"]
    monkeypatch.setattr("sys.stdin", io.StringIO("Mia\nTom \n"))
    assert json.loads(spoken([*words, "--json", "--prefix-file", "-"], capsys))["texts"] == made["texts"]
    said = spoken([*words, "--prompt", "Mia"], capsys)
    assert "text 1, seed 4, 2 passes" in said
    typed = json.loads(spoken([*words, "--json", "--prompt", "Mia\\nhas", "--prefix", "Mia\\n"], capsys))["texts"]
    assert [text["prefix"] for text in typed[::2]] == ["Mia\nhas", "Mia\\n"]  # only a prompt reads \n as a newline


def test_prompts_of_a_model_that_learned_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newline ends the prompt, as in training; a prefix is left as it is; something must be left to write."""
    model = tiny_model(source="mask", prompted=True)
    made = model.sample(n=3, steps=2, prompts=["Mia?", "Tom?\n"], batch=4)
    assert made.prefix == [*["Mia?\n"] * 3, *["Tom?\n"] * 3]
    assert made.texts == model.sample(n=3, steps=2, prefix=["Mia?\n", "Tom?\n"]).texts
    assert [start + answer for start, answer in zip(made.prefix, made.answers, strict=True)] == made.texts
    assert model.sample(steps=2).answers == model.sample(steps=2).texts
    assert model.sample(steps=2, prefix="Mia?").prefix == ["Mia?"]
    save_run(tmp_path / "run", tiny_spec(source="mask", prompted=True))
    words = ["sample", str(tmp_path / "run"), "--device", "cpu", "--n", "1", "--steps", "2", "--json"]
    file = tmp_path / "asked.jsonl"
    file.write_text('{"question": "Ben?"}\n{"prefix": "Ben"}\n')
    told = json.loads(spoken([*words, "--prompt", "Mia?", "--prefix-file", str(file)], capsys))["texts"]
    assert [text["prefix"] for text in told] == ["Mia?\n", "Ben?\n", "Ben"]
    assert all(text["text"] == text["prefix"] + text["answer"] for text in told)
    for more, wanted in (([], "answers prompts: give it one"), (["--prompt", " "], "--prompt is empty")):
        assert main([*words, *more]) == 2
        assert wanted in capsys.readouterr().err
    room = model.velocity.spec.length - model.velocity.spec.anchor
    for text, said in (("a" * (room - 1), "no room is left for its answer"), ("a" * room, "shorten it")):
        for more, which in (([], "the pr"), (["--prompt", "Mia?"], "'aaaaaaaaaaaaaaa")):  # of several, which of them
            assert main([*words, *more, "--prompt", text]) == 2
            error = capsys.readouterr().err.strip()
            assert said in error
            assert which in error
            assert len(error.splitlines()) == 1


def test_a_stream_is_json_lines_where_there_is_no_terminal(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sample", str(run), "--device", "cpu", "--n", "2", "--steps", "3"]
    events = [json.loads(line) for line in spoken([*words, "--stream"], capsys).splitlines()]
    assert [(e["event"], e["index"], e.get("pass")) for e in events] == [
        *(("pass", text, k) for k in (1, 2, 3) for text in (0, 1)),
        *(("text", text, None) for text in (0, 1)),
    ]
    texts = [event["text"] for event in events[-2:]]
    assert [event["text"] for event in events[4:6]] == texts
    assert texts == [text["text"] for text in json.loads(spoken([*words, "--json"], capsys))["texts"]]
    for more, said in (
        (["--json"], "leave out --json"),
        (["--live"], "choose one"),
        (["--infill", "{1-2}a"], "one length"),
    ):
        assert main([*words, "--stream", *more]) == 2
        assert said in capsys.readouterr().err


def test_a_stream_in_place_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")  # a dumb one gets JSON lines
    out = io.StringIO()
    screen = Screen(Console(file=out, force_terminal=True, width=60))
    made = tiny_model(source="mask").sample(n=2, steps=2, prefix="Mia", on_pass=screen)
    screen.close()
    shown = out.getvalue()
    assert "text 1, pass 1 of 2" in shown
    assert "text 1, pass 2 of 2" in shown
    assert "Mia" in shown
    assert "░" in shown  # [MASK], after the first pass
    assert "\x1b[" in shown  # the second stands where the first stood
    assert made.nfe == 2


def test_a_terminal_breaks_lines_between_words_and_a_file_gets_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "one two three four five " * 20
    made = Samples(texts=[text], tokens=torch.zeros(1, 4), nfe=8, seconds=1, seed=0, passes=[8])
    show_texts(made)
    assert text in capsys.readouterr().out
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    show_texts(made)
    _, *lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 10
    assert max(map(len, lines)) <= 40
    assert " ".join(lines).split() == text.split()  # no word is cut


def test_doctor_and_card_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(spoken(["doctor", "tiny_cpu", "--json"], capsys))
    assert "python" in found["machine"]
    extras = f"{found['machine']['extras']}, {found['machine'].get('no extra', '')}"
    assert all(name in extras for name in ("hub", "judges", "parquet", "serve", "tensorboard", "wandb", "zstd"))
    assert "parameters" in found["recipe"]
    card = json.loads(spoken(["card", "--json"], capsys))
    assert card["name"] == "tsdfm-stories"
    assert card["card"] == spoken(["card"], capsys)


def test_str_and_path(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes a path takes it as text too."""
    import tsdfm
    from tsdfm.nn.velocity import load_velocity
    from tsdfm.samples.trajectory import Trajectory
    from tsdfm.store.checkpoint import find_checkpoint, load_weights, read_state
    from tsdfm.store.files import read_json, write_json
    from tsdfm.store.manifest import read_manifest
    from tsdfm.tokens.tokenizer import load_tokenizer

    monkeypatch.chdir(tmp_path)
    made = tsdfm.load(str(run), "cpu").sample(n=1, steps=2, trajectory=True)
    assert made.trajectory is not None
    assert made.trajectory.save("way.json") == Path("way.json")
    assert Trajectory.load("way.json") == Trajectory.load(Path("way.json"))
    assert load_velocity(str(run)).sha256 == load_velocity(run).sha256
    assert find_checkpoint(str(run)) == find_checkpoint(run)
    assert load_weights(str(run)).keys() == load_weights(run).keys()
    assert read_state(str(find_checkpoint(run))) == read_state(find_checkpoint(run))
    assert read_manifest(str(run)) == read_manifest(run)
    assert load_tokenizer(str(run)).fingerprint == BYTES.fingerprint
    assert BYTES.save("there") == Path("there/tokenizer.json")
    assert read_json(str(write_json("a.json", {"a": 1}))) == {"a": 1}
