"""Random requests: the server never answers 500, explains every error, and keeps running."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error

from tests.server.harness import Served, served

BASES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    "/v1/completions": {"prompt": "hi", "max_tokens": 2},
    "/v1/responses": {"input": "hi", "max_output_tokens": 2},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "hi"}]},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [40]},
    "/wager/policy": {"policy": "auto"},
}
FIELDS = (
    "model messages prompt input max_tokens max_completion_tokens n temperature top_p top_k min_p seed stop "
    "stop_token_ids stream stream_options tools tool_choice response_format thinking reasoning "
    "reasoning_effort chat_template_kwargs speculation logprobs top_logprobs logit_bias system text "
    "output_config continue_final_message instructions tokens policy whatever"
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 1 << 31, 1 << 64, 10**400, -(10**30)]),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["\ud800", "\x00", "auto", "none", "required", "enabled", "json_schema", "x" * 5000]),
)
NAMES = st.sampled_from(["role", "content", "type", "name", "function", "schema", "mode", "nodes", "x"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def target(speaker: Path) -> Iterator[Served]:
    with served(speaker, served_name="tiny", max_output_tokens=4, max_thinking_tokens=2) as running:
        yield running


@pytest.fixture(scope="module")
def client(target: Served) -> Iterator[httpx.Client]:
    with target.client() as made:
        yield made


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(list(BASES)),
    st.dictionaries(st.sampled_from(FIELDS.split()), VALUES, min_size=1, max_size=3),
)
def test_any_values_in_any_fields(client: httpx.Client, path: str, changes: dict[str, Any]) -> None:
    content = json.dumps({**BASES[path], **changes})
    response = client.post(path, content=content, headers={"content-type": "application/json"})
    assert response.status_code == 200 or 400 <= response.status_code < 500, response.text
    assert response.status_code != 422
    if response.status_code != 200:
        assert response.json()["error"]["message"]
    elif response.headers["content-type"].startswith("text/event-stream"):
        assert '"error"' not in response.text


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(list(BASES)), st.binary(max_size=60))
def test_any_bytes(client: httpx.Client, path: str, content: bytes) -> None:
    response = client.post(path, content=content, headers={"content-type": "application/json"})
    assert 400 <= response.status_code < 500 and response.json()["error"]["message"]


def test_the_server_keeps_running(target: Served, client: httpx.Client) -> None:
    assert client.get("/health").status_code == 200
    assert client.post("/v1/completions", json=BASES["/v1/completions"]).status_code == 200
    assert not target.engine.scheduler.has_work


@pytest.fixture(scope="module")
def document(target: Served) -> Any:
    return schemathesis.openapi.from_url(f"{target.url}/openapi.json")


OPERATIONS = [
    *(("POST", path) for path in BASES),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{name}"),
    *(("GET", path) for path in ("/health", "/metrics", "/props", "/wager/state")),
]


def check_operation(document: Any, method: str, path: str, max_examples: int) -> None:
    """Send requests that the OpenAPI document allows, and others."""

    @settings(
        max_examples=max_examples, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @given(document[path][method].as_strategy())
    def check(case: schemathesis.Case) -> None:
        case.call_and_validate(checks=[not_a_server_error])

    check()


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_the_openapi_document_is_correct(document: Any, method: str, path: str) -> None:
    check_operation(document, method, path, 12)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_the_openapi_document_is_correct_with_many_examples(document: Any, method: str, path: str) -> None:
    check_operation(document, method, path, 400)


def test_every_operation_except_the_endless_one_is_checked(document: Any) -> None:
    known = {
        (method.upper(), path) for path, methods in document.raw_schema["paths"].items() for method in methods
    }
    assert known - set(OPERATIONS) == {("GET", "/wager/live")}
