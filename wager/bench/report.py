"""Writes and reads the result file of a run: measured values, settings, and the figures for readers.

The file has the raw times and counts, so reading it gives the same figures; the summary in it is for people
and other programs. This module knows JSON, not tables or pictures.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from wager.bench.figures import Figures, Summary, summarise
from wager.bench.records import Counts, Difference, Measured, Profile, Run, Timing
from wager.bench.results import result
from wager.errors import InputError

__all__ = ["NAME", "Report", "make_report", "read_report", "report_text", "write_report"]

NAME = "wager bench"
_FORMAT = 1


@dataclass(frozen=True)
class Report:
    """A run with everything that is needed to judge it; `origin` is date, commit, command and machine."""

    origin: Mapping[str, Any]
    config: Mapping[str, Any]
    measured: Measured

    @property
    def summary(self) -> Summary:
        return summarise(self.measured)

    @property
    def title(self) -> str:
        """One line with model, settings and machine."""
        config, machine = self.config, self.origin["machine"]
        threads = "1 thread" if config["threads"] == 1 else f"{config['threads']} threads"
        way = "greedy" if not config["temperature"] else f"T = {config['temperature']:g}"
        return (
            f"{config['model']}, suite {config['suite']}, {way}, {config['max_tokens']} tokens; "
            f"{config['device']['value']}, {config['dtype']}, {threads}, {machine['cpu']}"
        )


def make_report(config: Mapping[str, Any], measured: Measured) -> Report:
    """Returns a report of what was just measured on this machine."""
    origin = {key: value for key, value in result(NAME, {}, None).items() if key not in ("config", "data")}
    return Report(origin, dict(config), measured)


def write_report(report: Report, path: Path) -> None:
    path.write_text(report_text(report), encoding="utf-8")


def report_text(report: Report) -> str:
    """Returns the report as JSON, with one line per list of raw values."""
    text = json.dumps({**report.origin, "config": report.config, "data": _data(report)}, indent=1)
    return _folded(text) + "\n"


def read_report(path: Path) -> Report:
    """Reads a report. Raises InputError that names the file."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record.get("name") != NAME or record["data"].get("format") != _FORMAT:
            raise InputError(f"{path} is not a result of this version of wager bench", field="from")
        origin = {key: value for key, value in record.items() if key not in ("config", "data")}
        return Report(origin, record["config"], _measured(record["data"]))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}", field="from") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is damaged, or not a result of wager bench", field="from") from error


def _data(report: Report) -> dict[str, object]:
    measured = report.measured
    return {
        "format": _FORMAT,
        "finished": measured.finished,
        "summary": _summary(report.summary),
        "contenders": list(measured.contenders),
        "prompts": [list(prompt) for prompt in measured.prompts],
        "texts": {
            "compared": dict(measured.compared),
            "differences": [asdict(one) for one in measured.differences],
        },
        "counts": [
            {"contender": contender, "kind": kind, **_counts(counts)}
            for (contender, kind), counts in measured.counts.items()
        ],
        **({"profiles": _profiles(measured)} if measured.profiles else {}),
        "run_fields": "contender, prompt, round, place, wall_s, first_s, num_tokens, num_first",
        "runs": [_run(run) for run in measured.runs],
    }


def _profiles(measured: Measured) -> dict[str, object]:
    return {name: asdict(profile) for name, profile in measured.profiles.items()}


def _run(run: Run) -> list[object]:
    *where, clock = run
    return [*where, *clock]


def _counts(counts: Counts) -> dict[str, object]:
    found = {one.name: getattr(counts, one.name) for one in fields(Counts)}
    for name in ("bets", "accepted", "drafters"):
        found[name] = {str(key): found[name][key] for key in sorted(found[name])}
    return found


def _measured(data: Mapping[str, Any]) -> Measured:
    measured = Measured(
        list(data["contenders"]),
        [(str(kind), str(id)) for kind, id in data["prompts"]],
        [_run_from(run) for run in data["runs"]],
        compared=Counter(data["texts"]["compared"]),
        differences=[Difference(**one) for one in data["texts"]["differences"]],
        profiles={name: Profile(**one) for name, one in data.get("profiles", {}).items()},
        finished=bool(data["finished"]),
    )
    for one in data["counts"]:
        measured.counts[one["contender"], one["kind"]] = _counts_from(one)
    return measured


def _run_from(values: Sequence[Any]) -> Run:
    contender, prompt, round, place, *clock = values
    return Run(contender, prompt, round, place, Timing(*clock))


def _counts_from(found: Mapping[str, Any]) -> Counts:
    values = {one.name: found[one.name] for one in fields(Counts)}
    for name in ("bets", "accepted"):
        values[name] = Counter({int(key): times for key, times in values[name].items()})
    values["drafters"] = Counter(values["drafters"])
    return Counts(**values)


def _summary(summary: Summary) -> dict[str, object]:
    """Returns the figures by kind and contender, and those over all kinds."""
    return {
        "by_kind": {
            kind: {name: _figures(summary.cells[name, kind]) for name in summary.contenders}
            for kind in summary.kinds
        },
        "geometric_mean_over_kinds": _finite(summary.overall),
        "geometric_mean_over_kinds_after_first_token": _finite(summary.overall_decode),
        "best_fixed": {kind: best._asdict() for kind, best in summary.best_fixed.items()},
        "best_fixed_geometric_mean": summary.best_fixed_overall,
        "plain_against_plain": {kind: found._asdict() for kind, found in summary.control.items()},
    }


def _figures(figures: Figures) -> dict[str, object]:
    found = {key: value for key, value in asdict(figures).items() if key not in ("contender", "kind")}
    for name in ("speedup", "decode_speedup"):
        spread = getattr(figures, name)
        found[name] = None if spread is None else spread._asdict()
    return found


def _finite(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def _folded(text: str) -> str:
    """Returns JSON with one line per list of plain values."""
    lines: list[str] = []
    held: list[str] | None = None
    for line in text.split("\n"):
        opens = line.endswith("[")
        if held is None or opens:
            lines += held or []
            held = None
            if opens:
                held = [line]
            else:
                lines.append(line)
        elif line.strip() in ("]", "],"):
            lines.append(held[0] + " ".join(one.strip() for one in held[1:]) + line.strip())
            held = None
        else:
            held.append(line)
            if line.endswith("{"):
                lines += held
                held = None
    return "\n".join(lines)
