"""The check of `wager doctor` for the drafter: which one will be used, and whether it fits the target."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from wager.cli.doctor_checks import Finding, Target, config_source, local_folder, run_check, weight_files
from wager.config import EngineConfig
from wager.pairs import BUILT_IN, drafter_beside, find_pair


def check_drafter(config: EngineConfig, target: Target | None) -> Iterator[Finding]:
    """Says which drafter will be used, and checks that it fits the target."""
    name = config.model.drafter
    if name in BUILT_IN:
        yield Finding("drafter", "ok", name, "requested")
        return
    folder = drafter_folder(config, target)
    if folder is None:
        yield _no_drafter(name, config.model.model)
        return
    source = "requested" if name != "auto" else "auto: found beside the target"
    yield Finding("drafter folder", "ok", str(folder), source)
    yield from run_check("drafter weights", lambda: weight_files(folder, "drafter weights"))
    yield from run_check("drafter config", lambda: _drafter_config(folder, target))


def drafter_folder(config: EngineConfig, target: Target | None) -> Path | None:
    """Returns the drafter's folder if it has one on this machine."""
    name = config.model.drafter
    if name != "auto":
        return None if name in BUILT_IN else local_folder(name)
    beside = drafter_beside(target.folder) if target is not None else None
    match = find_pair(config.model.model)
    return beside or (local_folder(match.pair.drafter) if match is not None else None)


def _no_drafter(requested: str, model: str) -> Finding:
    if requested != "auto":
        return Finding("drafter", "fail", f"{requested} is not on this machine", "requested")
    match = find_pair(model)
    if match is None or match.pair.drafter in BUILT_IN:
        return Finding("drafter", "ok", "lookup: no trained drafter is known for this target", "auto")
    detail = f"{match.pair.drafter} is published, but not on this machine; lookup is used without it"
    return Finding("drafter", "warn", detail, "auto")


def _drafter_config(folder: Path, target: Target | None) -> Iterator[Finding]:
    from wager.draft import DRAFTERS, kind_of
    from wager.nn.weights import read_config

    values = read_config(folder)
    source = str(config_source(folder))
    for check in DRAFTERS[kind_of(values)].check(values, None if target is None else target.spec):
        yield Finding(*check, source)
