"""`wager doctor`: is this machine ready, is this model whole, does this drafter fit, and what holds?

Runs the checks of doctor_checks.py, shows them with every effective setting, the model's card and the source
of each, and ends with status 0 (all well), 1 (warnings) or 2 (failures). Without a model it looks at the demo
pair; with an empty one (`--model ""`) at the machine alone.
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
    check_drafter,
    check_machine,
    check_passes,
    check_target,
    decide,
)
from wager.cli.flags import config_flags, flagged, resolved, source_flags
from wager.config import EngineConfig
from wager.errors import ConfigError
from wager.policy import check_policy, settings_from
from wager.resolve import Resolved

_MARKS = {"ok": "ok  ", "warn": "WARN", "fail": "FAIL"}
_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


class Report(NamedTuple):
    """What was found, and the settings as they hold."""

    findings: list[Finding]
    settings: Resolved[EngineConfig]
    card: ModelCard | None = None
    """None where no model was named."""


@flagged(source_flags(), config_flags(EngineConfig))
def doctor(
    name: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Target model: the same as --model.")
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    **values: object,
) -> None:
    """Check this machine, a model and its drafter, and show every effective setting with its source.

    Exit status: 0 all well, 1 warnings, 2 failures.
    """
    settings = resolved(values, EngineConfig, name)
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
    """Run every check. The settings come back with what "auto" stands for here."""
    config = settings.config
    findings = [*check_machine(config), _policy(config)]
    if not config.model.model:
        findings.append(Finding("model", "ok", "none named: only the machine was looked at"))
        return Report(findings, _decided(settings, None))
    found, target = check_target(config)
    model_type = str(target.values.get("model_type", "")) if target is not None else ""
    card = card_for(config.model.model, model_type)
    findings += [*found, *check_drafter(config, target)]
    findings += [*check_passes(config, target), *check_calibration(config, target)]
    return Report(findings, _decided(settings, target), card)


def _decided(settings: Resolved[EngineConfig], target: Target | None) -> Resolved[EngineConfig]:
    """As far as the model's own files let it: a value they state wrongly is a finding elsewhere."""
    try:
        return decide(settings, target)
    except (ConfigError, ImportError):
        return settings


def _policy(config: EngineConfig) -> Finding:
    try:
        name = check_policy(config.policy.policy_name, settings_from(config.policy))
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
