"""Every bad request is answered with a 4xx status and one line that says what is wrong."""

import json
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.harness import Served, served

CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
JSON = {"content-type": "application/json"}


def refusal(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] and "\n" not in error["message"]
    return error


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_completion_tokens": 5}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"seed": 10**30}, "seed"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["a"] * 99}, "stop"),
        ({"stop": 3}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 1000}}, "logit_bias"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 99}, "logprobs"),
        ({"presence_penalty": 9}, "presence_penalty"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0].type",
        ),
        ({"messages": [{"role": "user", "content": "word " * 4000}]}, "messages"),
        ({"messages": [{"role": "user", "content": "word " * 800}]}, "messages"),
        ({"temperatur": 1}, "temperatur"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"web_search_options": {"a": 1}}, "web_search_options"),
        ({"messages": [{"role": "user", "content": [{"text": "a", "x": 1}]}]}, "messages[0].content[0].x"),
        ({"speculation": {"mode": "fixed"}}, "speculation.nodes"),
        ({"speculation": {"mode": "off", "nodes": 3}}, "speculation.nodes"),
        ({"speculation": {"mode": "fixed", "nodes": -1}}, "speculation"),
        ({"speculation": "off"}, "speculation"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "text", "regex": "a"}}, "response_format.regex"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_field_is_named(http: httpx.Client, changes: dict[str, Any], param: str | None) -> None:
    error = refusal(http.post("/v1/chat/completions", content=json.dumps({**CHAT, **changes}), headers=JSON))
    assert error["param"] == param and error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"{", "JSON"),
        (b"nonsense", "JSON"),
        (b'{"messages": "\xff\xfe"}', "JSON"),
        (b"[" * 100_000, "JSON"),
        (b'{"a":' * 100_000, "JSON"),
        (b"[1, 2]", "dictionary"),
        (b"null", "dictionary"),
        (b"9" * 10_000, ""),
    ],
    ids=["empty", "cut", "words", "not utf-8", "deep list", "deep object", "list", "null", "huge number"],
)
def test_a_body_that_is_not_an_object(http: httpx.Client, content: bytes, message: str) -> None:
    assert message in refusal(http.post("/v1/chat/completions", content=content, headers=JSON))["message"]


def test_half_a_surrogate_pair_is_refused(http: httpx.Client) -> None:
    body = json.dumps({**CHAT, "messages": [{"role": "user", "content": "\ud800"}]})
    assert "Unicode" in refusal(http.post("/v1/chat/completions", content=body, headers=JSON))["message"]
    body = json.dumps({**CHAT, "model": "\ud800"})
    assert refusal(http.post("/v1/chat/completions", content=body, headers=JSON), 404)["param"] == "model"


def test_unknown_paths_and_wrong_methods(http: httpx.Client) -> None:
    refusal(http.get("/v1/nothing"), 404)
    response = http.get("/v1/chat/completions")
    refusal(response, 405)
    assert response.headers["allow"] == "POST"
    refusal(http.post("/v1/chat/completions", content=json.dumps(CHAT)), 415)


def test_an_unknown_model(http: httpx.Client) -> None:
    error = refusal(http.post("/v1/chat/completions", json={**CHAT, "model": "tinny"}), 404)
    assert error["code"] == "model_not_found" and "'tiny'" in error["message"]
    assert http.post("/v1/chat/completions", json={**CHAT, "model": "small"}).json()["model"] == "small"


def test_a_body_over_the_limit(http: httpx.Client) -> None:
    for size in (5 << 20, 10 << 20):
        error = refusal(http.post("/v1/completions", json={"prompt": "x" * size}), 413)
        assert error["code"] == "body_too_large"

    def parts() -> Any:
        for _ in range(80):
            yield b"x" * (1 << 16)

    refusal(http.post("/v1/completions", content=parts(), headers=JSON), 413)
    assert http.get("/health").status_code == 200


def test_a_prompt_longer_than_any_context(http: httpx.Client) -> None:
    assert "context" in refusal(http.post("/v1/completions", json={"prompt": "x" * (2 << 20)}))["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [10**9]}, "prompt"),
        ({"prompt": [1, "a"]}, None),
        ({"prompt": ["a"] * 1000}, "prompt"),
        ({"prompt": "a", "best_of": 4}, "best_of"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "echo": True, "logprobs": 1}, "echo"),
        ({}, "prompt"),
    ],
    ids=str,
)
def test_a_bad_field_of_completions_is_named(
    http: httpx.Client, body: dict[str, Any], param: str | None
) -> None:
    error = refusal(http.post("/v1/completions", json={"max_tokens": 2, **body}))
    assert param is None or error["param"] == param


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [10**12]}, "tokens"),
        ("/tokenize", {"prompt": "a", "messages": CHAT["messages"]}, "prompt"),
        ("/tokenize", {"prompt": "a", "chat_template_kwargs": {"a": 1}}, "chat_template_kwargs"),
        ("/wager/policy", {"policy": "best"}, "policy"),
        ("/v1/responses", {"input": "a", "previous_response_id": "r"}, "previous_response_id"),
        ("/v1/responses", {"input": "a", "speculation": {"report": "tokens"}}, "speculation.report"),
        (
            "/v1/responses",
            {"input": "a", "text": {"format": {"type": "text", "schema": {}}}},
            "text.format.schema",
        ),
    ],
    ids=str,
)
def test_bad_fields_of_other_paths_are_named(
    http: httpx.Client, path: str, body: dict[str, Any], param: str
) -> None:
    assert refusal(http.post(path, json=body))["param"] == param


def test_another_host_name_is_refused(server: Served) -> None:
    with server.client(headers={"host": "evil.example"}) as client:
        refusal(client.get("/health"), 403)
    with server.client(headers={"host": "localhost:1"}) as client:
        assert client.get("/health").status_code == 200


@pytest.fixture(scope="module")
def guarded(speaker: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server with keys, small limits and no queue."""
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_text("# clients\nsecond-key\n")
    settings = {"api_key": "first-key,other", "api_key_file": str(keys), "max_queue": 0, "max_rows": 2}
    with served(speaker, body_timeout_s=0.3, **settings) as running:
        yield running


def test_keys(guarded: Served) -> None:
    with guarded.client() as client:
        assert client.get("/health").status_code == 200
        response = client.get("/v1/models")
        assert refusal(response, 401)["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"
        for path in ("/metrics", "/props", "/wager/state", "/openapi.json"):
            refusal(client.get(path), 401)
        refusal(client.get("/v1/models", headers={"authorization": "Bearer first"}), 401)
        for key in ("first-key", "other", "second-key"):
            assert client.get("/v1/models", headers={"authorization": f"Bearer {key}"}).status_code == 200
            assert client.get("/v1/models", headers={"x-api-key": key}).status_code == 200
        shown = client.get("/props", headers={"x-api-key": "other"}).text
    assert "first-key" not in shown and '"***"' in shown


def test_a_full_queue_says_when_to_retry(guarded: Served) -> None:
    with guarded.client(headers={"x-api-key": "other"}) as client:
        response = client.post("/v1/chat/completions", json={**CHAT, "n": 3})
        assert refusal(response, 429)["code"] == "queue_full"
        assert 1 <= int(response.headers["retry-after"]) <= 60
        assert client.post("/v1/chat/completions", json={**CHAT, "n": 2}).status_code == 200


def test_a_body_that_never_ends(guarded: Served) -> None:
    host, port = guarded.url.removeprefix("http://").split(":")
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nx-api-key: other\r\ncontent-length: 99\r\n"
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        sock.sendall(head.encode() + b"content-type: application/json\r\n\r\n{")
        assert sock.recv(1000).startswith(b"HTTP/1.1 408 ")
