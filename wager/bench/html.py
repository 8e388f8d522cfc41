"""The report of a run as one HTML page with figures, charts, texts and method, for light and dark displays.

The file is self-contained: it has no script and loads no font and no picture. It formats finished figures;
svg.py draws the charts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from typing import NamedTuple

from wager.bench.figures import (
    ALL_KINDS,
    BET_GROUPS,
    STAGES_SHOWN,
    Figures,
    Series,
    Spread,
    Summary,
    drawn,
    grouped_bets,
    is_fixed,
    stages_of,
    with_steps,
)
from wager.bench.plan import BASELINE
from wager.bench.report import Report
from wager.bench.svg import Bar, Group, Line, bars, legend, lines, stacks
from wager.bench.table import notes, text_notes

__all__ = ["page"]

_DETAILED = 3


class _Cell(NamedTuple):
    """A figure, and additional text in small print."""

    value: str
    beside: tuple[str, ...]


def page(report: Report) -> str:
    """Returns the whole page."""
    summary = report.summary
    parts = [_head(report)]
    if summary.kinds:
        parts += [
            _tiles(report, summary),
            _section("Speed-up by kind", _speedups(summary)),
            _section("Tokens per second", _rates(summary)),
            *[_section(f"How {name} bet", _bets(summary, name)) for name in _detailed(summary)],
            *([_section("Time per token by stage", _stages(summary))] if with_steps(summary) else []),
        ]
    parts += [_section("Texts", _texts(report)), _section("How this was measured", _method(report))]
    style = resources.files("wager.bench").joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>wager bench: {escape(report.title)}</title>\n<style>\n{style}</style>\n</head>\n"
        f"<body>\n<main>\n{''.join(parts)}</main>\n</body>\n</html>\n"
    )


def _detailed(summary: Summary) -> list[str]:
    """Returns the policies whose bets are drawn: the adaptive ones, or else the first."""
    shown = with_steps(summary)
    return [name for name in shown if not is_fixed(name)][:_DETAILED] or shown[:1]


def _head(report: Report) -> str:
    origin = report.origin
    when = f"{origin['date']}, commit {origin['commit'] or 'unknown'}"
    return (
        f"<header><h1>wager bench</h1><p>{escape(report.title)}</p>"
        f'<p class="dim">{escape(when)}</p></header>\n'
    )


def _tiles(report: Report, summary: Summary) -> str:
    tiles = [
        _tile(
            f"{summary.overall[one.name]:.2f}x", one.name, "over plain decoding, geometric mean of the kinds"
        )
        for one in drawn(summary)
        if one.name in summary.overall
    ]
    if summary.best_fixed_overall is not None:
        tiles.append(
            _tile(f"{summary.best_fixed_overall:.2f}x", "best fixed", "fixed:K, chosen in hindsight by kind")
        )
    if control := summary.control.get(ALL_KINDS):
        band = f"plain against plain, {control.low:.2f} to {control.high:.2f}"
        tiles.append(_tile(f"{control.mean:.3f}", "control", band))
    tiles.append(_text_tile(report))
    return f'<div class="tiles">{"".join(tiles)}</div>\n'


def _text_tile(report: Report) -> str:
    found = report.measured.differences
    wrong = sum(not one.excused for one in found)
    if wrong:
        return _tile(str(wrong), "texts", "left plain decoding's, beyond a near-tie")
    return _tile(
        "identical", "texts", f"but for near-ties: {len(found)}" if found else "in every answer compared"
    )


def _tile(value: str, name: str, words: str) -> str:
    return f"<div><b>{escape(value)}</b><span>{escape(name)}</span><small>{escape(words)}</small></div>"


def _speedups(summary: Summary) -> str:
    series = drawn(summary)
    groups = []
    for kind in summary.kinds:
        own = [
            Bar(found.mean, found.low, found.high, i, _hint(one.name, one.labels.get(kind), found))
            for i, one in enumerate(series)
            if (found := one.spreads.get(kind))
        ]
        groups.append(Group(kind, own))
    words = (
        "Whole requests: the time of plain decoding over the time of the contender, prompt by prompt. "
        "Geometric mean; whiskers from the 10 % to the 90 % quantile."
    )
    rows = [
        [one.name, *(_ratio(one, kind) for kind in summary.kinds), _mean(summary, one.name)] for one in series
    ]
    head = ["speed-up", *summary.kinds, "geo. mean"]
    return _p(words) + legend([one.name for one in series]) + bars(groups, 1.0) + _table(head, rows)


def _hint(name: str, label: str | None, found: Spread) -> str:
    who = f"{name} ({label})" if label else name
    spread = f"median {found.median:.2f}, {found.low:.2f} to {found.high:.2f}"
    return f"{who}: mean {found.mean:.3f}, {spread}, {found.num} ratios"


def _ratio(series: Series, kind: str) -> _Cell | str:
    found = series.spreads.get(kind)
    if found is None:
        return "-"
    which = (series.labels[kind],) if kind in series.labels else ()
    return _Cell(
        f"{found.mean:.2f}", (f"median {found.median:.2f}", f"{found.low:.2f} to {found.high:.2f}", *which)
    )


def _mean(summary: Summary, name: str) -> str:
    found = summary.overall.get(name, summary.best_fixed_overall)
    return "-" if found is None else f"{found:.2f}"


def _rates(summary: Summary) -> str:
    """Returns the table of rates for whole requests and after the first token."""
    rows = []
    for name in summary.contenders:
        cells = [_rate(summary.cells[name, kind]) for kind in summary.kinds]
        last = "1.00" if name == BASELINE else f"{summary.overall_decode[name]:.2f}"
        rows.append([name, *cells, last])
    words = (
        "Whole request / after the first token. Last column: speed-up after the first token, geometric mean."
    )
    return _p(words) + _table(["tokens/s", *summary.kinds, "after first"], rows)


def _rate(figures: Figures) -> str:
    decode = figures.decode_tokens_per_s
    return f"{figures.tokens_per_s:.1f} / {'-' if decode is None else format(decode, '.1f')}"


def _bets(summary: Summary, name: str) -> str:
    steps = {kind: found for kind in summary.kinds if (found := summary.cells[name, kind].steps)}
    rows = [
        [
            kind,
            f"{one.tokens_per_step:.2f}",
            f"{one.mean_bet:.2f}",
            f"{one.plain_share:.0%}",
            f"{one.acceptance:.0%}",
            ", ".join(f"{drafter or 'none'} {share:.0%}" for drafter, share in one.drafters.items()),
            f"{one.ledger_ms / 1e3:+.2f} s",
            "-" if one.ledger_speedup is None else f"{one.ledger_speedup:.2f}",
        ]
        for kind, one in steps.items()
    ]
    head = [
        "kind",
        "tokens/step",
        "mean bet",
        "bet 0",
        "accepted / verified",
        "drafters",
        "ledger",
        "ledger's speed-up",
    ]
    drawn_lines = [Line(kind, one.acceptance_by_depth, i) for i, (kind, one) in enumerate(steps.items())]
    return "".join(
        [
            _table(head, rows),
            _p("Guesses verified in a step, as a share of the steps:"),
            legend(BET_GROUPS, "r"),
            stacks({kind: grouped_bets(one) for kind, one in steps.items()}, BET_GROUPS),
            _p("Acceptance by depth: of the steps with a bet, the share that kept at least so many guesses:"),
            legend([line.label for line in drawn_lines]),
            lines(drawn_lines),
        ]
    )


def _stages(summary: Summary) -> str:
    names = [BASELINE, *with_steps(summary)]
    rows = {name: [stages_of(summary, name).get(stage, 0.0) for stage in STAGES_SHOWN] for name in names}
    words = "Milliseconds per emitted token, steps behind the prompt, the mean of the kinds."
    return _p(words) + legend(STAGES_SHOWN, "s") + stacks(rows, STAGES_SHOWN, "s", "ms")


def _texts(report: Report) -> str:
    compared = sum(times for name, times in report.measured.compared.items() if name != BASELINE)
    return _p(f"{compared} answers were compared with plain decoding's, token by token.") + _list(
        text_notes(report.measured) or ["nothing was compared"]
    )


def _method(report: Report) -> str:
    config = report.config
    items = [
        "Every contender answers every prompt in one process, plain decoding before and after it: ar X X ar. "
        "With several, groups of up to three go there and back, and their order moves on with every prompt.",
        f"Every answer has {config['max_tokens']} tokens: the end of text is ignored, by everybody alike. "
        "A prompt is read anew every time: no pages are reused.",
        "Plain decoding is the same engine without a drafter. Each policy learns from its own steps only and "
        "keeps what it learned. It starts cold, after a warm-up that is forgotten: "
        f"{config['warmup_tokens']} tokens of the first prompt of each kind, by everybody.",
        "Peers run the same weights, dtype, device and threads through transformers' generate, "
        "with its own defaults.",
    ]
    said = text_notes(report.measured)
    details = json.dumps({**report.origin, "config": report.config}, indent=1)
    return (
        _list(items)
        + _list(line for line in notes(report) if line not in said)
        + f"<details><summary>Machine and settings</summary><pre>{escape(details)}</pre></details>"
    )


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>\n{body}</section>\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[_Cell | str]]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{_shown(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>\n'


def _shown(cell: _Cell | str) -> str:
    if isinstance(cell, _Cell):
        small = "".join(f"<small>{escape(words)}</small>" for words in cell.beside)
        return f"<b>{escape(cell.value)}</b>{small}"
    return escape(cell)


def _list(items: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>\n"


def _p(words: str) -> str:
    return f"<p>{escape(words)}</p>\n"
