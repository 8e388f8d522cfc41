"""What the documents say holds: examples run, names exist, and every field is mentioned."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest
from pydantic import BaseModel

from tests.architecture.layout import ROOT
from tests.server.harness import Served
from wager.server.schemas.chat import ChatBody, CompletionBody
from wager.server.schemas.messages import MessagesBody
from wager.server.schemas.responses import ResponsesBody

API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


def examples(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", API, re.DOTALL)


def for_server(example: str, server: Served) -> str:
    """The same example, pointed at the server of these tests."""
    return example.replace("http://127.0.0.1:8000", server.url).replace('"demo"', '"tiny"')


@pytest.mark.parametrize("number", range(len(examples("python"))))
def test_python_examples_run(server: Served, number: int, capsys: pytest.CaptureFixture[str]) -> None:
    exec(for_server(examples("python")[number], server), {})
    assert capsys.readouterr().out


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_examples_run(server: Served, tmp_path: Path) -> None:
    lines = [one for example in examples("sh") for one in for_server(example, server).split("curl -s ")[1:]]
    assert len(lines) >= 8
    script = "set -e\n" + "\n".join(f"curl -s --fail-with-body {line.strip()}\necho" for line in lines)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    for line in filter(None, done.stdout.splitlines()):
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


@pytest.mark.parametrize("body", [ChatBody, CompletionBody, ResponsesBody, MessagesBody])
def test_every_field_that_does_nothing_is_listed(body: type[BaseModel]) -> None:
    source = Path(__import__(body.__module__, fromlist=["x"]).__file__).read_text(encoding="utf-8")
    harmless = re.findall(r"# Harmless.*?(?=\n\n|\Z|\n    #)", source, re.DOTALL)
    names = {name for part in harmless for name in re.findall(r"^    (\w+):", part, re.MULTILINE)}
    assert names and all(f"`{name}`" in API for name in names)


@pytest.mark.parametrize("body", [ChatBody, CompletionBody, ResponsesBody, MessagesBody])
def test_every_refused_field_is_listed(body: type[BaseModel]) -> None:
    assert all(f"`{name}`" in API for name in body.refused)  # type: ignore[attr-defined]
