"""The routes that generate no text: health, models, tokenizer, settings, metrics, state, policy, page."""

import json
import re
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.server.harness import Served, served, wait_until
from wager.server.app import PAGE

REQUEST = {"prompt": "The quick brown fox", "max_tokens": 8, "temperature": 0, "ignore_eos": True}


def test_health_and_models(http: httpx.Client) -> None:
    assert http.get("/health").json() == {"status": "ok"}
    listed = http.get("/v1/models").json()
    assert [one["id"] for one in listed["data"]] == ["tiny", "small"]
    assert http.get("/v1/models/tiny").json()["max_model_len"] == 1024
    assert http.get("/v1/models/other").status_code == 404


def test_tokenize_and_detokenize(http: httpx.Client) -> None:
    found = http.post("/tokenize", json={"prompt": "naïve 😀", "return_token_strs": True}).json()
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert http.post("/detokenize", json={"tokens": found["tokens"]}).json() == {"prompt": "naïve 😀"}
    chat = {
        "messages": [{"role": "user", "content": "hi"}],
        "chat_template_kwargs": {"enable_thinking": True},
    }
    ids = http.post("/tokenize", json=chat).json()["tokens"]
    assert http.post("/detokenize", json={"tokens": ids}).json()["prompt"].endswith("assistant: <think>")
    ids = http.post("/tokenize", json={**chat, "add_generation_prompt": False}).json()["tokens"]
    assert http.post("/detokenize", json={"tokens": ids}).json()["prompt"].endswith("hi\n")


def test_props_show_values_and_sources(http: httpx.Client) -> None:
    found = http.get("/props").json()
    assert found["settings"]["scheduler.max_rows"] == {"value": 8, "source": "flag --max-rows"}
    assert found["settings"]["server.host"] == {"value": "127.0.0.1", "source": "default"}
    assert "auto" in found["policies"] and found["policy"] == "auto"
    assert found["engine"]["model_type"] == "qwen3"


def test_metrics_can_be_parsed_and_share_a_prefix(http: httpx.Client) -> None:
    http.post("/v1/completions", json=REQUEST).raise_for_status()
    http.get("/no/such/path")
    families = {one.name: one for one in text_string_to_metric_families(http.get("/metrics").text)}
    assert all(name.startswith("wager_") for name in families)
    wanted = (
        "spec_decode_num_drafts spec_decode_num_draft_tokens spec_decode_num_accepted_tokens "
        "spec_decode_num_accepted_tokens_per_pos time_to_first_token_seconds time_per_output_token_seconds "
        "e2e_request_latency_seconds num_requests_running num_requests_waiting kv_cache_usage_ratio "
        "ledger_seconds speedup_ratio bet_nodes probes cost_error_ratio stage_seconds policy_info "
        "generation_tokens prompt_tokens requests http_requests"
    )
    assert {f"wager_{name}" for name in wanted.split()} <= set(families)
    labels = {sample.labels.get("path") for sample in families["wager_http_requests"].samples}
    assert "/v1/completions" in labels and "other" in labels and "/no/such/path" not in labels
    stages = {sample.labels["stage"] for sample in families["wager_stage_seconds"].samples}
    assert {"plan", "verify", "learn"} <= stages


def test_the_state_and_its_stream(http: httpx.Client) -> None:
    http.post("/v1/completions", json=REQUEST).raise_for_status()
    state = http.get("/wager/state").json()
    names = (
        "t running waiting max_rows pages_used pages_total tokens_per_s tokens_per_step bet_mean "
        "bet_histogram acceptance_by_depth ledger_ms speedup policy acceptance_ema requests"
    )
    assert set(state) == set(names.split())
    assert state["pages_total"] == 400 and state["tokens_per_s"] > 0
    with http.stream("GET", "/wager/live") as stream:
        lines = stream.iter_lines()
        events = [line for line, _ in zip((one for one in lines if one), range(2), strict=False)]
    assert [set(json.loads(line.removeprefix("data: "))) for line in events] == [set(state)] * 2


def test_the_policy_can_be_changed_while_the_server_runs(speaker: Path) -> None:
    with served(speaker) as running, running.client() as client:
        texts = []
        for name in ("ar", "fixed:3", "auto"):
            assert client.post("/wager/policy", json={"policy": name}).json() == {"policy": name}
            assert client.get("/wager/state").json()["policy"] == name
            texts.append(client.post("/v1/completions", json=REQUEST).json()["choices"][0]["text"])
        assert len(set(texts)) == 1
        assert client.post("/wager/policy", json={"policy": "fixed:x"}).status_code == 400
        assert client.get("/wager/state").json()["policy"] == "auto"


def test_the_policy_of_an_open_server_cannot_be_changed(speaker: Path) -> None:
    """An open server listens on all addresses and has no keys."""
    with served(speaker, host="0.0.0.0") as running, running.client() as client:
        assert client.post("/wager/policy", json={"policy": "ar"}).status_code == 403
        assert client.get("/props").json()["policy_may_change"] is False


def test_the_openapi_document(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    paths = (
        "/v1/chat/completions /v1/completions /v1/responses /v1/messages /v1/messages/count_tokens "
        "/v1/models /tokenize /detokenize /health /metrics /props /wager/live /wager/state /wager/policy"
    )
    assert set(paths.split()) <= set(document["paths"])
    assert http.get("/docs").status_code == 404


def test_cors_is_off_by_default(http: httpx.Client, speaker: Path) -> None:
    origin = {"origin": "https://example.org"}
    assert "access-control-allow-origin" not in http.get("/health", headers=origin).headers
    with served(speaker, cors_origin="https://example.org") as running, running.client() as client:
        found = client.get("/health", headers=origin).headers
        assert found["access-control-allow-origin"] == "https://example.org"
        other = client.get("/health", headers={"origin": "https://other.example"}).headers
        assert "access-control-allow-origin" not in other
        preflight = {**origin, "access-control-request-method": "POST"}
        assert client.options("/v1/completions", headers=preflight).status_code == 200


@pytest.mark.skipif(not (PAGE / "index.html").is_file(), reason="the page is not installed")
def test_the_page_loads_nothing_from_other_servers(http: httpx.Client) -> None:
    page = http.get("/")
    assert page.status_code == 200 and "default-src 'self'" in page.headers["content-security-policy"]
    for address in re.findall(r'(?:src|href)="([^"#]+)"', page.text):
        assert "//" not in address
        if address.startswith("/page/"):
            assert http.get(address).status_code == 200


def test_the_access_log(server: Served, caplog: pytest.LogCaptureFixture, speaker: Path) -> None:
    headers = {"x-api-key": "secret-key", "x-request-id": "abc-1"}
    with (
        served(speaker, access_log=True, api_key="secret-key") as running,
        caplog.at_level("INFO", "wager.access"),
        running.client(headers=headers) as client,
    ):
        response = client.post("/v1/completions?token=hidden", json=REQUEST)
        assert response.headers["x-request-id"] == "abc-1"
        client.get("/nowhere", headers={"x-request-id": "bad id!"})
        wait_until(lambda: sum(record.name == "wager.access" for record in caplog.records) == 2)
    lines = [json.loads(record.message) for record in caplog.records if record.name == "wager.access"]
    first, second = lines
    assert first["id"] == "abc-1" and first["path"] == "/v1/completions" and first["status"] == 200
    assert first["output_tokens"] == 8 and first["finish"] == "length" and first["ms"] > 0
    assert second["status"] == 404 and re.fullmatch("[0-9a-f]{32}", second["id"])
    assert not any(word in json.dumps(lines) for word in ("secret-key", "hidden", "quick brown"))


@pytest.mark.parametrize("path", ["/", "/page/app.js", "/page/style.css"])
def test_the_page_has_security_headers(http: httpx.Client, path: str) -> None:
    headers = http.get(path).headers
    assert "default-src 'self'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-cache"
