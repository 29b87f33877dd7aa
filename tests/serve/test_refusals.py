"""What the server refuses, and how it says so: wrong fields, wrong names, missing keys and those who mean ill."""

from __future__ import annotations

import json
import socket
from typing import Any

import openai
import pytest
from http_parts import HTTP, MODEL, Server, listening, post

LONG = "x" * 30


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
