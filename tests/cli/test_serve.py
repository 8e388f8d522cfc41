"""`wager serve` in its own process: the banner, the exit status and the error messages."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.architecture.layout import ROOT
from tests.server.harness import save_speaker
from wager.cli import main
from wager.config import settings_of
from wager.resolve import resolve
from wager.server.middleware import is_loopback
from wager.server_config import ServeConfig, ServerConfig

WAGER = [sys.executable, "-c", "from wager.cli.main import run; run()"]
QUICK = ["--drafter", "none", "--layout", "out_in", "--threads", "1", "--num-pages", "300", "--port", "0"]
PATIENCE_S = 120


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_speaker(tmp_path_factory.mktemp("served") / "target")


def start(*args: str, **variables: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WAGER_")}
    return subprocess.Popen(
        [*WAGER, "serve", *args],
        cwd=ROOT,
        env=environment | {"HF_HUB_OFFLINE": "1", "WAGER_NATIVE": "off"} | variables,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def address(process: subprocess.Popen[str]) -> str:
    """The address in the banner."""
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"OpenAI +(http://\S+)/v1", line):
            return found[1]
    raise AssertionError("no banner")


def error_line(*args: str, **variables: str) -> str:
    process = start(*args, **variables)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2, err
    lines = [line for line in err.splitlines() if not line.startswith("wager: no model")]
    assert len(lines) == 1 and lines[0].startswith("wager: error: ") and "Traceback" not in err
    return lines[0]


def test_the_server_answers_and_stops(target: Path) -> None:
    process = start(str(target), *QUICK)
    try:
        url = address(process)
        body = json.dumps({"prompt": "hello", "max_tokens": 4}).encode()
        request = urllib.request.Request(
            f"{url}/v1/completions", body, {"content-type": "application/json", "x-request-id": "one"}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] <= 4
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 0, err
    lines = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    assert [line["id"] for line in lines] == ["one"]
    assert "Traceback" not in err


def test_an_interrupt_stops_the_server(target: Path) -> None:
    process = start(str(target), *QUICK)
    try:
        address(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=PATIENCE_S) == 0
    finally:
        process.kill()


def test_each_mistake_is_reported_in_one_line(target: Path, tmp_path: Path) -> None:
    assert "no-such" in error_line("./no-such", *QUICK)
    assert "policy" in error_line(str(target), *QUICK, "--policy", "best")
    assert "max_queue" in error_line(str(target), *QUICK, "--max-queue", "many")
    assert "api_key_file" in error_line(str(target), *QUICK, "--api-key-file", str(tmp_path / "none"))
    assert "WAGER_PROT" in error_line(str(target), *QUICK, WAGER_PROT="1")


def test_a_port_in_use_is_reported_at_once(target: Path) -> None:
    process = start(str(target), *QUICK)
    try:
        port = address(process).rpartition(":")[2]
        assert f":{port}" in error_line(str(target), *QUICK[:-2], "--port", port)
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


def test_every_setting_is_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.exit_status(["serve", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for setting in settings_of(ServeConfig):
        assert f"{setting.flag} " in shown


def test_flags_override_the_environment_and_the_environment_overrides_the_file(tmp_path: Path) -> None:
    file = tmp_path / "wager.toml"
    file.write_text('[server]\nport = 1\nhost = "::1"\nmax_queue = 1\n[scheduler]\nmax_rows = 3\n')
    env = {"WAGER_PORT": "2", "WAGER_MAX_QUEUE": "2"}
    found = resolve(file, env, {"port": "3"}, root=ServeConfig)
    server = found.config.server
    assert (server.host, server.max_queue, server.port) == ("::1", 2, 3)
    assert found.sources["server.port"] == "flag --port"
    assert found.sources["server.max_queue"] == "env WAGER_MAX_QUEUE"
    assert found.config.engine().scheduler.max_rows == 3


def test_other_commands_accept_server_settings(tmp_path: Path) -> None:
    file = tmp_path / "wager.toml"
    file.write_text("[server]\nport = 1\n")
    assert resolve(file, {"WAGER_API_KEY": "a"}).config.scheduler.max_rows == 32
    assert "server.port" not in resolve(file).sources


def test_the_settings_are_those_of_the_engine_and_of_the_server() -> None:
    from wager.config import EngineConfig

    names = [setting.key for setting in settings_of(ServeConfig)]
    own = [f"server.{setting.name}" for setting in settings_of(ServerConfig)]
    assert sorted(names) == sorted([setting.key for setting in settings_of(EngineConfig)] + own)
    assert len(set(names)) == len({setting.name for setting in settings_of(ServeConfig)})


def test_loopback_addresses() -> None:
    assert all(map(is_loopback, ["127.0.0.1", "127.8.8.8", "::1", "localhost"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "192.168.1.1", "example.org"]))
