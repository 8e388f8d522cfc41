"""Runs one block of a page in a folder of its own: shell commands, servers, Python, settings and JSON.

Programs are those beside this Python, and the package is the one of this tree. Servers listen on a free port,
and addresses in the block are changed accordingly. The user's cache is neither read nor written, except that
blocks which name SmolLM2 find it there.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from tests.architecture.layout import ROOT
from tests.packaging.pages import Block, commands_of, program_of, words_of
from wager.fetched import models_folder
from wager.resolve import resolve
from wager.server_config import ServeConfig

WRITTEN_ADDRESS = "127.0.0.1:8000"
QUICK_LIMIT_S, SLOW_LIMIT_S = 300.0, 1800.0


def free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


def environment(cache: Path, *, with_models: bool = False) -> dict[str, str]:
    """Variables for the programs of a block: plain torch in one thread, no measured costs, an empty cache."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WAGER_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
    models = models_folder() if with_models else cache / "models"
    changed = {
        "PATH": path,
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(cache),
        "WAGER_MODELS": str(models),
    }
    settings = {"WAGER_NATIVE": "off", "WAGER_CALIBRATE": "false", "WAGER_THREADS": "1"}
    return kept | changed | settings | {"HF_HUB_OFFLINE": "1"}


@contextmanager
def serving(command: str, folder: Path, variables: dict[str, str], limit_s: float) -> Iterator[str]:
    """Runs a serve command until it answers /health, yields its address, and stops it by SIGTERM."""
    port = free_port()
    log = folder / f"serve-{port}.txt"
    with log.open("w") as out:
        process = subprocess.Popen(
            ["bash", "-c", f"exec env {command}"],
            cwd=folder,
            env=variables | {"WAGER_PORT": str(port)},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _wait_for_health(process, port, log, limit_s)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    assert process.returncode == 0, f"{command} ended with {process.returncode}:\n{log.read_text()}"


def _wait_for_health(process: subprocess.Popen[bytes], port: int, log: Path, limit_s: float) -> None:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        assert process.poll() is None, f"the server ended with {process.returncode}:\n{log.read_text()}"
        with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
            assert answer.status == 200
            return
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
    raise AssertionError(f"no answer from /health within {limit_s:.0f} s:\n{log.read_text()}")


def run_shell(text: str, folder: Path, variables: dict[str, str], limit_s: float) -> None:
    """Runs the commands of a block in one shell; a server among them runs alone."""
    for is_server, commands in groupby(commands_of(text), key=is_serve):
        if not is_server:
            _run_script("\n".join(commands), folder, variables, limit_s)
            continue
        for command in commands:
            with serving(command, folder, variables, limit_s):
                pass


def is_serve(command: str) -> bool:
    return program_of(command) == "wager" and words_of(command)[1:2] == ["serve"]


def _run_script(script: str, folder: Path, variables: dict[str, str], limit_s: float) -> None:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit_s,
    )
    assert done.returncode == 0, f"status {done.returncode} of:\n{script}\n\n{done.stdout[-4000:]}"


def run_python(text: str, path: Path, names: dict[str, Any]) -> None:
    """Runs a snippet in this process and in the current folder, with the names of the snippets before it."""
    path.write_text(text, encoding="utf-8")  # so that tracebacks show its lines
    exec(compile(text, str(path), "exec"), names)


def run_block(block: Block, folder: Path, cache: Path, address: str | None, names: dict[str, Any]) -> None:
    """Runs a block in `folder`.

    `address` is that of a running server if the block talks to one. `names` are those of the page's Python
    blocks so far.
    """
    text = block.text if address is None else block.text.replace(WRITTEN_ADDRESS, address)
    if block.language == "sh":
        limit_s = SLOW_LIMIT_S if block.is_slow else QUICK_LIMIT_S
        run_shell(text, folder, environment(cache, with_models=block.names_smollm2), limit_s)
    elif block.language == "python":
        run_python(text, folder / f"{block.place.replace('/', '-').replace(':', '-line-')}.py", names)
    elif block.language == "toml":
        assert tomllib.loads(text)
        (folder / "wager.toml").write_text(text, encoding="utf-8")
        resolve(folder / "wager.toml", env={}, root=ServeConfig)
    else:
        json.loads(text)


def talks_to_a_server(block: Block) -> bool:
    """Whether a block expects a running server that it does not start."""
    starts = block.language == "sh" and any(map(is_serve, commands_of(block.text)))
    return block.language in ("sh", "python") and WRITTEN_ADDRESS in block.text and not starts
