"""The documentation matches the code: examples run, metrics exist, and every special field is listed."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
from pydantic import BaseModel

from tests.architecture.layout import ROOT
from tests.server.harness import Served
from wager.server.schemas.base import NO_EFFECT, Body, Sampling
from wager.server.schemas.chat import ChatBody, CompletionBody
from wager.server.schemas.messages import MessagesBody
from wager.server.schemas.responses import ResponsesBody

API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
BODIES: dict[str, type[Body]] = {
    "chat": ChatBody,
    "completions": CompletionBody,
    "responses": ResponsesBody,
    "messages": MessagesBody,
}


def examples(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", API, re.DOTALL)


def for_server(example: str, server: Served) -> str:
    """The same example with the address and the model name of the test server."""
    return example.replace("http://127.0.0.1:8000", server.url).replace('"demo"', '"tiny"')


@pytest.mark.parametrize("number", range(len(examples("python"))))
def test_python_examples_run(server: Served, number: int, capsys: pytest.CaptureFixture[str]) -> None:
    exec(for_server(examples("python")[number], server), {})
    assert capsys.readouterr().out


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_examples_run(server: Served, tmp_path: Path) -> None:
    lines = [line for example in examples("sh") for line in for_server(example, server).split("curl -s ")[1:]]
    assert len(lines) >= 8
    script = "set -e\n" + "\n".join(f"curl -s --fail-with-body {line.strip()}\necho" for line in lines)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    for line in filter(None, done.stdout.split("\n")):  # splitlines would also split at U+2028
        json.loads(line)


def test_documented_metrics_exist(http: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    http.post("/v1/chat/completions", json=body).raise_for_status()
    shown = http.get("/metrics").text
    named = set(re.findall(r"wager_[a-z0-9_]+", OPERATIONS + (ROOT / "docs/grafana.json").read_text()))
    known = set(re.findall(r"^(wager_[a-z0-9_]+)", shown, re.MULTILINE))
    known |= set(re.findall(r"^# TYPE (wager_[a-z0-9_]+)", shown, re.MULTILINE))
    assert named - known == set()
    families = {name.removesuffix("_created") for name in re.findall(r"^# TYPE (\S+)", shown, re.MULTILINE)}
    assert {name for name in families if name not in OPERATIONS} == set()


Fields = Iterator[tuple[str, Any]]


def parts_of(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models in a type annotation such as `str | list[ContentPart] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from parts_of(argument)


def fields_of(
    model: type[BaseModel], above: tuple[Any, ...] = (), path: str = ""
) -> Iterator[tuple[str, Any]]:
    """Every field of a body by its path, nested fields included."""
    for name, field in model.model_fields.items():
        here = f"{path}.{field.alias or name}".lstrip(".")
        yield here, field
        for part in parts_of(field.annotation):
            if part not in above:
                yield from fields_of(part, (*above, part), here)


def declared_without_effect() -> set[tuple[str, str, str]]:
    """(API, path, reason) of every field that the schemas declare with `no_effect`."""
    return {
        (api, path, field.description.removeprefix(NO_EFFECT))
        for api, body in BODIES.items()
        for path, field in fields_of(body)
        if (field.description or "").startswith(NO_EFFECT)
    }


def table(heading: str) -> list[list[str]]:
    """The cells of the table below a heading of docs/api.md."""
    section = API.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def test_fields_without_effect_are_the_documented_ones() -> None:
    documented = {
        (api, path, reason)
        for paths, apis, reason in table("Accepted without effect")
        for path in re.findall("`(.*?)`", paths)
        for api in apis.split(", ")
    }
    assert documented == declared_without_effect()


def test_refused_fields_are_the_documented_ones() -> None:
    documented = {
        (api, name, reason)
        for names, apis, reason in table("Refused fields")
        for name in re.findall("`(.*?)`", names)
        for api in apis.split(", ")
    }
    refused = {(api, name, why) for api, body in BODIES.items() for name, why in body.refused.items()}
    assert documented == refused


@pytest.mark.parametrize("api", BODIES)
def test_every_other_field_is_used(api: str) -> None:
    """A field that is neither refused nor without effect is read by the code of the server."""
    folder = ROOT / "wager" / "server"
    source = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    skipped = {path for each, path, _ in declared_without_effect() if each == api}
    skipped |= set(Sampling.model_fields)  # `Sampling.given` reads all of them
    skipped |= {"modalities", "truncation", "speed"}  # only the value that changes nothing is allowed
    fields = set(BODIES[api].model_fields) - skipped
    assert {name for name in fields if not re.search(rf'body\.{name}\b|"{name}"', source)} == set()
