"""The server over HTTP, asked by OpenAI's own client, by a plain one, and by those who mean ill."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import httpx
import openai
import pytest
import torch
from http_parts import listening
from serve_parts import gate, offline, served

from tsdfm.serve.jobs import Ask
from tsdfm.serve.scheduler import Scheduler
from tsdfm.serve.served import Served

MODEL = served(source="uniform", step_size=True)
LONG = "x" * 30
HTTP = httpx.Client(timeout=600, verify=False, limits=httpx.Limits(max_connections=None))  # no certificates to load
Server = tuple[str, Scheduler]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with listening(MODEL, served("other/mask"), max_n=4, max_steps=500, max_body=20_000) as made:
        yield made


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server[0]}/v1", api_key="none", max_retries=0, timeout=600) as made:
        yield made


def texts(model: Served, **ask: Any) -> list[str]:
    """What `sample` writes, as text."""
    return model.model.texts(torch.tensor(offline(model.model, Ask(model=model.name, **ask))))


def post(server: Server, path: str = "/v1/completions", **body: Any) -> httpx.Response:
    return HTTP.post(server[0] + path, json={"model": "tiny", **body})


def events(answer: httpx.Response) -> list[Any]:
    lines = [line for line in answer.text.splitlines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


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


MALFORMED: list[tuple[Any, str | None]] = [  # what is sent, and the field that is named
    *[({name: bad}, name) for name, bads in {
        "model": (None, 3, ["tiny"]),
        "prompt": (3, [], [1, 2], [["a"]], {"a": 1}, LONG, "\ud800", [LONG, "a"], [""] * 300, [1] * 5000),
        "n": (0, -1, 5, 1.5, "1", True),
        "steps": (0, -1, 501, 2.5, "4", [4]),
        "seed": (2**63, -(2**63) - 1, 1.5, "1"),
        "temperature": (-0.1, 11, "warm", [1]),
        "top_p": (0, -1, 1.01, "all"),
        "max_tokens": (0, -3, 1.5),
        "stop": ("", ["a"] * 5, [""], 3),
        "stream": ("yes", 1),
        "jump": ("eular", 3, "x" * 101, "remdm-conf", "\udc80"),
        "guide": ("token", "north", 1),
        "infill": ("no gap", "{99}", "{3-1}", [], 7, "{1}" * 5000, ["{1-9}"] * 2000),
        "suffix": ("end",),
        "logprobs": (1,),
        "logit_bias": ({"5": 1.0},),
        "best_of": (3,),
        "presence_penalty": (0.5,),
        "unknown_field": (1,),
        "stream_options": ({"more": 1},),
    }.items() for bad in bads],
    ({"jump": "late:16", "steps": 16}, "steps"),
    ({"prompt": "a", "infill": "{1}"}, "infill"),
    ({"infill": "{1-3}", "stream": True}, "infill"),
]  # fmt: skip


def test_bad_fields_are_named(server: Server) -> None:
    assert len(MALFORMED) >= 50
    for body, field in MALFORMED:
        sent, kind = json.dumps({"model": "tiny", **body}), {"content-type": "application/json"}
        answer = HTTP.post(f"{server[0]}/v1/completions", content=sent, headers=kind)
        assert answer.status_code == 400, (body, answer.text)
        problem = answer.json()["error"]
        assert problem["param"] == field, (body, problem)
        assert problem["message"]
        assert "\n" not in problem["message"]


def test_refusals_say_what_is_wrong(server: Server) -> None:
    for body, said in (
        ({"stop": ["a"] * 5}, "stop: List should have at most 4 items after validation, not 5"),
        ({"stop": ["a", 3]}, "stop.1: Input should be a valid string"),
        ({"prompt": []}, "prompt: List should have at least 1 item after validation, not 0"),
        ({"prompt": ["a", 2]}, "prompt.1: Input should be a valid string"),
        ({"suffix": "end"}, "suffix: is not known here: leave it out"),
        ({"stream_options": {"more": 1}}, "stream_options.more: Extra inputs are not permitted"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage: Input should be a valid boolean"),
    ):
        assert post(server, **body).json()["error"]["message"] == said
    answer = HTTP.post(
        f"{server[0]}/v1/completions", content=b'{"model": "tiny"}', headers={"content-type": "text/plain"}
    )
    assert answer.json()["error"]["message"] == "the body: send it with Content-Type: application/json"


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("POST", "/v1/completions", b"", 400),
        ("POST", "/v1/completions", b"{", 400),
        ("POST", "/v1/completions", b"[]", 400),
        ("POST", "/v1/completions", b"null", 400),
        ("POST", "/v1/completions", b"\xff\xfe", 400),
        ("POST", "/v1/completions", b'{"model": "tiny", "temperature": NaN}', 400),
        ("POST", "/v1/completions", b'{"model": "tiny", "n": ' + b"9" * 5000 + b"}", 400),
        ("POST", "/v1/completions", b'{"a":' * 3000, 400),
        ("POST", "/v1/completions", b'{"model": "tiny", "prompt": "' + b"x" * 20_000 + b'"}', 413),
        ("POST", "/v1/infill", b'{"model": "tiny"}', 400),
        ("POST", "/v1/infill", b'{"model": "gone", "template": "{1}"}', 404),
        ("GET", "/v1/completions", b"", 405),
        ("DELETE", "/v1/models", b"", 405),
        ("GET", "/v1/models/gone", b"", 404),
        ("GET", "/etc/passwd", b"", 404),
        ("GET", "/../../etc/passwd", b"", 404),
    ],
)
def test_malformed_requests(server: Server, method: str, path: str, content: bytes, status: int) -> None:
    answer = HTTP.request(method, server[0] + path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == status
    assert set(answer.json()) == {"error"}
    assert ("allow" in answer.headers) == (status == 405)


def test_a_refusal_is_short_whatever_was_sent(server: Server) -> None:
    for body in ({"model": "é" * 3000}, {"é" * 3000: 1}, {"jump": "é" * 3000}):
        answer = post(server, **body)
        assert answer.status_code in (400, 404)
        assert len(answer.content) < 15_000  # an é is six characters there, in a message and in a name


def test_a_head_is_a_get_without_its_body(server: Server) -> None:
    for path in ("/", "/healthz", "/v1/models", "/metrics"):
        one, other = HTTP.head(server[0] + path), HTTP.get(server[0] + path)
        assert (one.status_code, one.content, one.headers["content-type"]) == (200, b"", other.headers["content-type"])
    assert HTTP.head(f"{server[0]}/v1/completions").status_code == 405


def raw(server: Server, text: bytes) -> bytes:
    """The first answer to bytes on a socket."""
    host, port = server[0].removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=600) as line:
        line.sendall(text)
        return line.recv(4096)


def test_bodies_without_a_length_are_limited_too(server: Server) -> None:
    host = server[0].removeprefix("http://").encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: " + host + b"\r\nContent-Type: application/json\r\n"
    chunk = b"4000\r\n" + b" " * 0x4000 + b"\r\n"
    assert b" 413 " in raw(server, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 2)
    assert b" 400 " in raw(server, b"NONSENSE\r\n\r\n")
    assert b" 403 " in raw(server, b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n")


def test_only_its_own_names_are_answered(server: Server) -> None:
    port = server[0].rpartition(":")[2]
    for host, status in {
        f"localhost:{port}": 200,
        f"127.0.0.1:{port}": 200,
        "localhost:1": 403,
        "evil.example": 403,
        f"evil.example:{port}": 403,
    }.items():
        assert HTTP.get(f"{server[0]}/v1/models", headers={"Host": host}).status_code == status
    assert "access-control-allow-origin" not in HTTP.get(f"{server[0]}/healthz", headers={"Origin": "http://x"}).headers


def test_names_and_origins_that_were_given() -> None:
    with listening(MODEL, names=("tsdfm", "My-Host"), origins=("https://a.example", "null")) as made:
        port = made[0].rpartition(":")[2]
        for host, status in {
            "tsdfm": 200,
            "TSDFM:9090": 200,
            "my-host": 200,
            f"localhost:{port}": 200,
            "other": 403,
        }.items():
            assert HTTP.get(f"{made[0]}/healthz", headers={"Host": host}).status_code == status
        answers = {"https://a.example": "https://a.example", "null": "null", "https://b.example": None}
        for origin, allowed in answers.items():
            answer = HTTP.get(f"{made[0]}/v1/models", headers={"Origin": origin})
            assert answer.headers.get("access-control-allow-origin") == allowed


def test_a_key() -> None:
    with listening(MODEL, api_key="sésame") as made:
        assert HTTP.get(f"{made[0]}/v1/models").status_code == 401
        assert HTTP.get(f"{made[0]}/healthz").status_code == 200
        for key, status in {"sésame": 200, "sesame": 401, "s": 401}.items():
            sent = {"Authorization": f"Bearer {key}".encode()}
            assert HTTP.get(f"{made[0]}/v1/models", headers=sent).status_code == status
    with listening(MODEL, api_key="sesame") as made:
        for key, problem in {"sesame": None, "wrong": openai.AuthenticationError}.items():
            with openai.OpenAI(base_url=f"{made[0]}/v1", api_key=key, max_retries=0) as client:
                if problem is None:
                    client.completions.create(model="tiny", prompt="a")
                else:
                    with pytest.raises(problem):
                        client.completions.create(model="tiny", prompt="a")


def test_what_the_guard_refuses_is_counted_and_may_be_read_by_pages_that_may_ask() -> None:
    with listening(MODEL, api_key="sesame", origins=("https://a.example",), max_body=100) as made:
        origin, key = {"Origin": "https://a.example"}, {"Authorization": "Bearer sesame"}
        one = HTTP.get(f"{made[0]}/v1/models", headers=origin)
        two = HTTP.post(f"{made[0]}/v1/completions", content=b" " * 200, headers=origin | key)
        three = HTTP.get(f"{made[0]}/healthz", headers=origin | {"Host": "evil.example"})
        assert [answer.status_code for answer in (one, two, three)] == [401, 413, 403]
        assert {answer.headers["access-control-allow-origin"] for answer in (one, two, three)} == {"https://a.example"}
        told = HTTP.get(f"{made[0]}/metrics").text
        assert all(f'tsdfm_requests_total{{path="other",status="{status}"}} 1.0' in told for status in (401, 413, 403))
        assert HTTP.head(f"{made[0]}/healthz").status_code == 200
        assert 'path="/healthz",status="200"' in HTTP.get(f"{made[0]}/metrics").text


def test_the_document_has_the_answers_that_there_are(server: Server) -> None:
    made = HTTP.get(f"{server[0]}/openapi.json").json()
    statuses = {path: set(next(iter(ways.values()))["responses"]) for path, ways in made["paths"].items()}
    assert not any(known & {"422", "401"} for known in statuses.values())
    assert {"400", "404", "429", "503", "504"} <= statuses["/v1/completions"]
    assert set(made["paths"]["/healthz"]["get"]["responses"]["503"]["content"]) == {"text/plain"}
    assert set(made["paths"]["/healthz"]["get"]["responses"]["403"]["content"]) == {"application/json"}
    with listening(MODEL, api_key="sesame") as locked:
        made = HTTP.get(f"{locked[0]}/openapi.json").json()
        assert "401" in made["paths"]["/v1/models"]["get"]["responses"]


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
