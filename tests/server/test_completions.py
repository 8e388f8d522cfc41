"""/v1/completions and /v1/chat/completions over HTTP: answers, chunks, usage and statistics."""

import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.harness import SETTINGS
from wager.config import with_values
from wager.engine.assemble import build_engine
from wager.server.request_builder import RequestBuilder
from wager.server_config import ServeConfig

GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
CHAT = {"messages": [{"role": "user", "content": "The quick brown fox"}], **GREEDY}
TEXT = {"prompt": "The quick brown fox", **GREEDY}


def events(response: httpx.Response) -> list[Any]:
    lines = [line[6:] for line in response.text.split("\n\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def post(http: httpx.Client, path: str, body: dict[str, Any]) -> Any:
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    return events(response) if body.get("stream") else response.json()


def test_a_chat_is_answered(http: httpx.Client) -> None:
    found = post(http, "/v1/chat/completions", CHAT)
    assert found["object"] == "chat.completion" and found["model"] == "tiny"
    [choice] = found["choices"]
    assert choice["message"]["role"] == "assistant" and choice["finish_reason"] == "length"
    assert found["usage"]["completion_tokens"] == 12
    assert found["usage"]["total_tokens"] == 12 + found["usage"]["prompt_tokens"]
    spec = found["metrics"]["speculative_decoding"]
    assert spec["mode"] == "auto" and spec["num_steps"] > 0 and spec["tokens_per_step"] > 0


@pytest.mark.parametrize("path,body", [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)])
def test_a_stream_has_the_same_text(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    whole = post(http, path, body)["choices"][0]
    chunks = post(http, path, {**body, "stream": True})
    choices = [chunk["choices"][0] for chunk in chunks]
    if "chat" in path:
        assert choices[0]["delta"]["role"] == "assistant"
        text = "".join(choice["delta"].get("content") or "" for choice in choices)
        assert text == whole["message"]["content"]
    else:
        assert "".join(choice["text"] for choice in choices) == whole["text"]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[-1]["usage"]["completion_tokens"] == 12 and "metrics" in chunks[-1]


def test_the_models_own_sampling_is_the_default(speaker: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(speaker, tmp_path / "own"))
    (folder / "generation_config.json").write_text('{"temperature": 0.4, "eos_token_id": 1}')
    config = with_values(ServeConfig(), **{**SETTINGS, "model": str(folder)})
    builder = RequestBuilder(build_engine(config.engine()), config)
    assert builder.sampling_params({}, 3, None, None).temperature == 0.4
    assert builder.sampling_params({"temperature": 0.9}, 3, None, None).temperature == 0.9
    builder.prompts.close()


def test_usage_follows_the_stream_options(http: httpx.Client) -> None:
    body = {**CHAT, "stream": True}
    separate = post(http, "/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
    assert separate[-1]["choices"] == [] and separate[-1]["usage"]["completion_tokens"] == 12
    assert "usage" not in separate[-2]
    none = post(http, "/v1/chat/completions", {**body, "stream_options": {"include_usage": False}})
    assert not any("usage" in chunk for chunk in none)


def test_each_choice_has_its_own_seed(http: httpx.Client) -> None:
    body = {**CHAT, "temperature": 1.5, "seed": 3, "n": 3}
    found = post(http, "/v1/chat/completions", body)
    texts = [choice["message"]["content"] for choice in found["choices"]]
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2] and len(set(texts)) == 3
    assert found["usage"]["completion_tokens"] == 36
    chunks = post(http, "/v1/chat/completions", {**body, "stream": True})
    streamed = ["", "", ""]
    for chunk in chunks:
        choice = chunk["choices"][0]
        streamed[choice["index"]] += choice["delta"].get("content") or ""
    assert streamed == texts
    alone = post(http, "/v1/chat/completions", {**body, "n": 1})
    assert alone["choices"][0]["message"]["content"] == texts[0]


def test_several_prompts(http: httpx.Client) -> None:
    found = post(http, "/v1/completions", {**GREEDY, "prompt": ["The quick", "def main"], "n": 2})
    texts = [choice["text"] for choice in found["choices"]]
    assert len(texts) == 4 and texts[0] == texts[1] and texts[2] == texts[3]
    ids = http.post("/tokenize", json={"prompt": "The quick"}).json()["tokens"]
    by_ids = post(http, "/v1/completions", {**GREEDY, "prompt": ids})
    assert by_ids["choices"][0]["text"] == texts[0]


def test_echo(http: httpx.Client) -> None:
    found = post(http, "/v1/completions", {**TEXT, "echo": True})["choices"][0]["text"]
    assert found.startswith(TEXT["prompt"])
    chunks = post(http, "/v1/completions", {**TEXT, "echo": True, "stream": True})
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == found


def test_logprobs(http: httpx.Client) -> None:
    body = {**CHAT, "logprobs": True, "top_logprobs": 3}
    [choice] = post(http, "/v1/chat/completions", body)["choices"]
    content = choice["logprobs"]["content"]
    assert len(content) == 12
    for one in content:
        assert one["logprob"] <= 0.0 and len(one["top_logprobs"]) == 3
        assert one["top_logprobs"][0]["logprob"] == one["logprob"]
        assert one["top_logprobs"][0]["bytes"] == one["bytes"]
    text = b"".join(bytes(one["bytes"]) for one in content).decode(errors="replace")
    assert text.startswith(choice["message"]["content"][:3])
    chunks = post(http, "/v1/chat/completions", {**body, "stream": True})
    streamed = [one for c in chunks for one in (c["choices"][0]["logprobs"] or {}).get("content", [])]
    # The two runs can use passes of different sizes, which round differently.
    assert [one["bytes"] for one in streamed] == [one["bytes"] for one in content]
    pairs = zip(streamed, content, strict=True)
    assert all(one["logprob"] == pytest.approx(other["logprob"], abs=1e-4) for one, other in pairs)
    assert all(len(one["top_logprobs"]) == 3 for one in streamed)
    older = post(http, "/v1/completions", {**TEXT, "logprobs": 2})["choices"][0]["logprobs"]
    assert {len(part) for part in older.values()} == {12}


def test_a_stop_string_ends_the_text_and_is_reported(http: httpx.Client) -> None:
    text = post(http, "/v1/completions", TEXT)["choices"][0]["text"]
    stop = text[3:6]
    [choice] = post(http, "/v1/completions", {**TEXT, "stop": [stop]})["choices"]
    assert choice["text"] == text[: text.index(stop)]
    assert choice["finish_reason"] == "stop" and choice["stop_reason"] == stop


def test_logit_bias_and_seed(http: httpx.Client) -> None:
    token = http.post("/tokenize", json={"prompt": "fox", "add_special_tokens": False}).json()["tokens"][0]
    found = post(http, "/v1/completions", {**TEXT, "logit_bias": {str(token): 100}, "logprobs": 0})
    assert len(set(found["choices"][0]["logprobs"]["tokens"])) == 1
    warm = {**TEXT, "temperature": 1.2, "seed": 11}
    assert post(http, "/v1/completions", warm)["choices"] == post(http, "/v1/completions", warm)["choices"]


def test_speculation_does_not_change_the_text(http: httpx.Client) -> None:
    modes = [{"mode": "off"}, {"mode": "fixed", "nodes": 3}, {"mode": "auto", "report": "tokens"}]
    found = [post(http, "/v1/chat/completions", {**CHAT, "speculation": mode}) for mode in modes]
    assert len({one["choices"][0]["message"]["content"] for one in found}) == 1
    stats = [answer["metrics"]["speculative_decoding"] for answer in found]
    assert [each["mode"] for each in stats] == ["off", "fixed:3", "auto"]
    assert stats[0]["num_draft_tokens"] == 0 and stats[0]["tokens_per_step"] == 1.0


def test_tokens_are_reported_with_their_origin(http: httpx.Client) -> None:
    chunks = post(http, "/v1/chat/completions", {**CHAT, "stream": True, "speculation": {"report": "tokens"}})
    tokens = [token for chunk in chunks for token in chunk.get("wager", {"tokens": []})["tokens"]]
    assert len(tokens) == 12
    assert {frozenset(token) for token in tokens} == {
        frozenset({"text", "origin", "bet", "depth", "confidence", "drafter"})
    }
    assert {token["origin"] for token in tokens} <= {"target", "guess"}
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    assert "".join(token["text"] for token in tokens) == text
    whole = post(http, "/v1/chat/completions", {**CHAT, "speculation": {"report": "tokens"}})["choices"][0]
    assert "".join(token["text"] for token in whole["wager"]["tokens"]) == text
