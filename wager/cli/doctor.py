"""`wager doctor`: checks the machine, a model and its drafter, and shows the effective settings.

Runs the checks of doctor_checks.py and prints them, followed by every setting and every value of the model's
card with its source. The exit status is 0 (no problem), 1 (warnings) or 2 (failures). Without a model it
checks the demo pair; with an empty name (`--model ""`) it checks the machine alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import typer

from wager.cards import ModelCard, card_for
from wager.cli.doctor_checks import (
    Finding,
    Target,
    check_calibration,
    check_machine,
    check_passes,
    check_target,
    config_source,
)
from wager.cli.doctor_drafter import check_drafter, drafter_folder
from wager.cli.flags import config_flags, model_argument, resolve_config, source_flags, with_flags
from wager.cli.help import OUTPUT
from wager.config import EngineConfig
from wager.errors import ConfigError
from wager.policy import check_policy, settings_from
from wager.resolve import Resolved
from wager.threads import choose_threads

_MARKS = {"ok": "ok  ", "warn": "WARN", "fail": "FAIL"}
_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


class Report(NamedTuple):
    findings: list[Finding]
    settings: Resolved[EngineConfig]
    card: ModelCard | None = None
    """The model's card; None if no model was named."""


@with_flags(source_flags(), config_flags(EngineConfig))
def doctor(
    name: Annotated[str | None, model_argument()] = None,
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON.", rich_help_panel=OUTPUT)
    ] = False,
    **values: object,
) -> None:
    """Check this machine, a model and its drafter, and show every effective setting with its source.

    Exit status: 0 no problem, 1 warnings, 2 failures.
    """
    settings = resolve_config(values, EngineConfig, name)
    report = examine(settings)
    if as_json:
        typer.echo(json.dumps(_as_dict(report), indent=1))
    else:
        _show(report)
    raise typer.Exit(exit_status(report.findings))


def exit_status(findings: Sequence[Finding]) -> int:
    statuses = {finding.status for finding in findings}
    return 2 if "fail" in statuses else 1 if "warn" in statuses else 0


def examine(settings: Resolved[EngineConfig]) -> Report:
    """Runs every check and returns the settings with every "auto" replaced by its value."""
    config = settings.config
    findings = [*check_machine(config), _policy(config)]
    if not config.model.model:
        findings.append(Finding("model", "ok", "no model was named; only the machine was checked"))
        return Report(findings, _without_auto(settings, None))
    found, target = check_target(config)
    model_type = str(target.values.get("model_type", "")) if target is not None else ""
    card = card_for(config.model.model, model_type, folder=None if target is None else target.folder)
    findings += [*found, *check_drafter(config, target)]
    findings += [*check_passes(config, target), *check_calibration(config, target)]
    return Report(findings, _without_auto(settings, target), card)


def _without_auto(settings: Resolved[EngineConfig], target: Target | None) -> Resolved[EngineConfig]:
    """Replaces every "auto", or nothing if the model's files have wrong values, which a check reports."""
    try:
        return _resolve_auto(settings, target)
    except (ConfigError, ImportError):
        return settings


def _resolve_auto(settings: Resolved[EngineConfig], target: Target | None) -> Resolved[EngineConfig]:
    """Replaces every "auto" that can be decided without loading the model, and records the reason."""
    import torch

    from wager.nn.models.hf_config import choose_dtype

    config = settings.config
    if config.model.device == "auto":
        has_cuda = torch.cuda.is_available()
        reason = "auto: a CUDA device was found" if has_cuda else "auto: no CUDA device was found"
        settings = settings.choose("device", "cuda" if has_cuda else "cpu", reason)
    if config.threads == 0:
        threads = choose_threads()
        settings = settings.choose("threads", threads.number, f"0: {threads.source}")
    if target is None:
        return settings
    source = f"auto: {config_source(target.folder)}"
    if config.model.dtype == "auto":
        dtype = choose_dtype("auto", target.values, str(settings.value("device")))
        settings = settings.choose("dtype", dtype.name, f"auto: {dtype.reason}")
    if config.scheduler.max_context == 0:
        settings = settings.choose("max_context", target.spec.max_position, source.replace("auto", "0"))
    if config.model.drafter == "auto":
        folder = drafter_folder(config, target)
        reason = "auto: no trained drafter was found" if folder is None else "auto: found on this machine"
        settings = settings.choose("drafter", "lookup" if folder is None else str(folder), reason)
    return settings


def _policy(config: EngineConfig) -> Finding:
    try:
        name = check_policy(config.policy.policy, settings_from(config.policy))
    except ConfigError as error:
        return Finding("policy", "fail", str(error))
    return Finding("policy", "ok", name)


def _as_dict(report: Report) -> dict[str, object]:
    rows = report.settings.rows()
    return {
        "status": exit_status(report.findings),
        "checks": [finding._asdict() for finding in report.findings],
        "settings": {row.setting.key: {"value": row.value, "source": row.source} for row in rows},
        "card": {name: {"value": value, "source": source} for name, value, source in _card_rows(report)},
    }


def _card_rows(report: Report) -> list[tuple[str, object, str]]:
    return [] if report.card is None else list(report.card.rows())


def _show(report: Report) -> None:
    findings = report.findings
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        mark = typer.style(_MARKS[finding.status], fg=_COLOURS[finding.status])
        source = f"  ({finding.source})" if finding.source else ""
        typer.echo(f"{mark}  {finding.name.ljust(width)}  {finding.detail}{source}")
    rows = [(row.setting.key, row.value, row.source) for row in report.settings.rows()]
    rows += [(f"card.{name}", value, source) for name, value, source in _card_rows(report)]
    width = max(len(name) for name, _, _ in rows)
    typer.echo("")
    for name, value, source in rows:
        typer.echo(f"{name.ljust(width)}  {value!s:<12}  {source}")
