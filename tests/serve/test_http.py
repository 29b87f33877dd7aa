"""The server over HTTP, asked by OpenAI's own client and by a plain one."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import openai
import pytest
import torch
from http_parts import HTTP, MODEL, Server, events, listening, post
from serve_parts import gate, offline, served

from tsdfm.serve.jobs import Ask
from tsdfm.serve.served import Served


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server[0]}/v1", api_key="none", max_retries=0, timeout=600) as made:
        yield made


def texts(model: Served, **ask: Any) -> list[str]:
    """What `sample` writes, as text."""
    return model.model.texts(torch.tensor(offline(model.model, Ask(model=model.name, **ask))))


def test_the_client_of_openai_writes_unchanged(client: openai.OpenAI) -> None:
    made = client.completions.create(model="tiny", prompt="Mia", n=2, seed=3, temperature=0.7, top_p=0.9)
    wanted = texts(MODEL, prefixes=("Mia",), n=2, seed=3, temperature=0.7, top_p=0.9)
    assert ["Mia" + choice.text for choice in made.choices] == wanted
    assert [choice.index for choice in made.choices] == [0, 1]
    assert made.usage is not None
    assert (made.usage.prompt_tokens, made.usage.completion_tokens, made.usage.total_tokens) == (6, 32, 38)
    assert made.system_fingerprint == client.models.retrieve("tiny").model_dump()["system_fingerprint"]


def test_more_prompts_steps_and_echo(client: openai.OpenAI) -> None:
    made = client.completions.create(
        model="tiny", prompt=["a ", "b"], n=2, seed=1, echo=True, extra_body={"steps": 7, "jump": "euler"}
    )
    wanted = texts(MODEL, prefixes=("a ", "b"), n=2, seed=1, steps=7, jump="euler")
    assert [choice.text for choice in made.choices] == wanted


def test_the_client_streams_the_same_text(client: openai.OpenAI) -> None:
    pieces = dict[int, str]()
    chunks = list(
        client.completions.create(
            model="tiny", prompt="Mia", n=2, seed=3, stream=True, stream_options={"include_usage": True}
        )
    )
    for chunk in chunks:
        for choice in chunk.choices:
            pieces[choice.index] = pieces.get(choice.index, "") + choice.text
    assert ["Mia" + pieces[index] for index in range(2)] == texts(MODEL, prefixes=("Mia",), n=2, seed=3)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 38


def test_a_model_is_named_by_the_client(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny", "other/mask"]
    card = client.models.retrieve("other/mask").model_dump()
    assert (card["source"], card["length"], card["steps"], card["exact"]) == ("mask", 19, 4, True)
    made = client.completions.create(model="other/mask", prompt="", seed=2)
    assert [choice.text for choice in made.choices] == texts(served("other/mask"), seed=2, prefixes=("",))


def test_what_the_client_makes_of_refusals(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="no model is called 'gone'"):
        client.completions.create(model="gone", prompt="")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gone")
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt="", temperature=-1)
    assert caught.value.param == "temperature"


def test_every_pass_is_an_event_and_the_changes_make_the_text(server: Server) -> None:
    told = events(post(server, "/v1/infill", template="a {2} b", seed=5, steps=3, stream=True))
    passes = [event["provisional"] for event in told if "provisional" in event]
    assert [(each["pass"], each["of"], each["t"]) for each in passes] == [
        (0, 3, 0.0),
        (1, 3, 0.333333),
        (2, 3, 0.666667),
        (3, 3, 1.0),
    ]
    assert passes[0]["given"] == [0, 1, 4, 5]
    state = dict[int, int]()
    for each in passes:
        state |= {place: token for place, token, _ in each["changes"]}
        assert all(
            piece == bytes([token]).decode("utf-8", "replace") for _, token, piece in each["changes"] if token < 256
        )
    (wanted,) = offline(MODEL.model, Ask(model="tiny", infills=("a {2} b",), seed=5, steps=3))
    assert [state[place] for place in range(19)] == wanted[1:]
    assert told[-1]["choices"][0]["text"] == texts(MODEL, infills=("a {2} b",), seed=5, steps=3)[0]
    assert told[-1]["choices"][0]["finish_reason"] in ("stop", "length")


def test_masks_have_no_text(server: Server) -> None:
    told = events(post(server, model="other/mask", prompt="ab", seed=5, steps=3, stream=True))
    first = told[0]["provisional"]["changes"]
    assert [piece for _, _, piece in first] == ["a", "b"] + [None] * 17


def test_infill_by_either_path(server: Server) -> None:
    wanted = texts(MODEL, infills=("a {1-3} b",), seed=2, n=2)
    one, other = (
        post(server, path, **{field: "a {1-3} b"}, seed=2, n=2).json()
        for path, field in (("/v1/infill", "template"), ("/v1/completions", "infill"))
    )
    assert [choice["text"] for choice in one["choices"]] == wanted == [c["text"] for c in other["choices"]]
    assert one["usage"]["passes"] == 2 * 3 * (4 + 8)  # two texts, three lengths each, four steps and eight to score


def test_cuts(server: Server) -> None:
    whole = texts(MODEL, prefixes=("Mia",), seed=3)[0]
    made = post(server, prompt="Mia", seed=3, max_tokens=4, echo=True).json()
    assert made["choices"][0]["finish_reason"] == "length"
    assert made["usage"]["completion_tokens"] == 4
    letter = whole[8]
    made = post(server, prompt="Mia", seed=3, stop=["\0\0\0", letter]).json()
    assert made["choices"][0] == {
        "index": 0, "text": whole[3 : whole.index(letter, 3)], "finish_reason": "stop", "logprobs": None,
    }  # fmt: skip


def test_templates_of_unlike_lengths_are_cut_each_by_its_own(server: Server) -> None:
    templates = ("a{1-6}b", "the dog {2} home")
    made = post(server, infill=templates, seed=3, max_tokens=2).json()
    assert (made["usage"]["prompt_tokens"], made["usage"]["completion_tokens"]) == (2 + 13, 2 + 2)
    whole = MODEL.model.tokenizer.decode(offline(MODEL.model, Ask(model="tiny", infills=templates, seed=3))[1][1:16])
    assert made["choices"][1]["text"] == whole


def test_what_a_template_gives_is_neither_counted_nor_searched(server: Server) -> None:
    """`max_tokens` are written ones, wherever gaps are, and of a gap of several lengths the one that was chosen."""
    (row,) = offline(MODEL.model, Ask(model="tiny", infills=("ab{2}cd{2}e",), seed=3))
    for most, size in ((1, 3), (2, 6), (3, 7), (4, 9), (5, 10)):
        made = post(server, infill="ab{2}cd{2}e", seed=3, max_tokens=most).json()
        assert made["choices"][0]["text"] == MODEL.model.tokenizer.decode(row[1 : 1 + size])
        assert (made["usage"]["prompt_tokens"], made["usage"]["completion_tokens"]) == (5, most)
    made = post(server, infill="ab{2}cd{2}e", seed=3, stop=["b", "d"]).json()
    assert made["choices"][0]["text"] == MODEL.model.tokenizer.decode(row[1:7]).removesuffix("d")
    (row,) = offline(MODEL.model, Ask(model="tiny", infills=("a{1-6}b",), seed=3))
    cut = [post(server, infill="a{1-6}b", seed=3, max_tokens=most).json()["choices"][0]["text"] for most in range(1, 7)]
    assert any(
        cut == [MODEL.model.tokenizer.decode(row[1 : 2 + most + (most >= size)]) for most in range(1, 7)]
        for size in range(1, 7)
    )


def test_none_is_the_default(server: Server) -> None:
    asked = {"prompt": "Mia", "seed": 3}
    names = (
        "n",
        "steps",
        "temperature",
        "top_p",
        "jump",
        "guide",
        "stream",
        "stream_options",
        "max_tokens",
        "stop",
        "echo",
    )
    assert post(server, **asked, **dict.fromkeys(names)).json()["choices"] == post(server, **asked).json()["choices"]
    told = events(
        post(server, **asked, stream=True, stream_options={"include_usage": None, "include_obfuscation": False})
    )
    assert "usage" not in told[-1] or told[-1]["usage"] is None


def test_without_a_seed_the_answer_names_one(server: Server) -> None:
    one, two = post(server, prompt="a").json(), post(server, prompt="a").json()
    assert one["seed"] != two["seed"]
    again = post(server, prompt="a", seed=one["seed"]).json()
    assert again["choices"] == one["choices"]


def test_health_and_metrics(server: Server) -> None:
    post(server, prompt="a", seed=1)
    assert HTTP.get(f"{server[0]}/healthz").text == "ok\n"
    assert HTTP.get(f"{server[0]}/readyz").text == "ready\n"
    told = HTTP.get(f"{server[0]}/metrics").text
    for line in ("tsdfm_rows_live 0.0", 'tsdfm_requests_total{path="/v1/completions",status="200"}'):
        assert line in told
    assert float(told.split("\ntsdfm_texts_total ")[1].split()[0]) >= 1


def test_a_full_queue_is_429_and_says_when_to_come_back() -> None:
    begun = threading.Event()
    with listening(MODEL, rows=1, queue=1) as made, gate() as hold:
        made[1].submit(Ask(model="tiny"), lambda _: (begun.set(), hold.wait(600)))
        assert begun.wait(600)
        made[1].submit(Ask(model="tiny"))
        answer = post(made, prompt="a")
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
        made[1].tally.busy, made[1].tally.rows = 1e9, 1  # passes that take for ever: nothing outlives the deadline
        assert post(made, prompt="a").headers["retry-after"] == "600"


def test_a_deadline_is_504() -> None:
    with listening(MODEL, clock=count(0.0, 0.1).__next__, deadline=5.0) as made:  # a pass takes a tenth of a second
        whole, stream = (post(made, prompt="a", steps=400, stream=stream) for stream in (False, True))
        assert whole.status_code == 504
        assert "within 5 s" in whole.json()["error"]["message"]
        assert stream.status_code == 200  # it had begun
        assert "within 5 s" in events(stream)[-1]["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_frees_its_rows(server: Server, stream: bool) -> None:
    before, scheduler = server[1].tally.texts, server[1]
    body = json.dumps({"model": "tiny", "n": 4, "steps": 500, "stream": stream}).encode()
    host = server[0].removeprefix("http://")
    with socket.create_connection((host.split(":")[0], int(host.split(":")[1])), timeout=600) as line:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        line.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        while not scheduler.live:
            time.sleep(0.001)
    while scheduler.live or scheduler.waiting:
        time.sleep(0.001)
    assert scheduler.tally.texts == before  # they were given up, not written


def test_a_crowd_gets_the_texts_of_its_seeds() -> None:
    """Forty clients with requests of their own, few places: each gets its own text, or is told to come back."""
    asks = [
        {
            "prompt": "ab" * (seed % 4),
            "seed": seed,
            "steps": 1 + seed % 5,
            "n": 1 + seed % 3,
            "temperature": 0.5 + seed % 2,
        }
        for seed in range(40)
    ]
    with listening(MODEL, rows=4, queue=60) as made, ThreadPoolExecutor(len(asks)) as crowd:
        answers = list(crowd.map(lambda ask: post(made, echo=True, **ask), asks))
        assert {answer.status_code for answer in answers} <= {200, 429}
        assert made[1].live == 0
    good = [(ask, answer.json()) for ask, answer in zip(asks, answers, strict=True) if answer.status_code == 200]
    assert len(good) >= 20
    for ask, answer in good:
        how = {name: ask[name] for name in ("seed", "steps", "n", "temperature")}
        assert [c["text"] for c in answer["choices"]] == texts(MODEL, prefixes=(ask["prompt"],), **how)
