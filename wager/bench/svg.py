"""Small SVG charts for the HTML report: bars with whiskers, stacked bars, lines.

Colours are classes (`s0`, `s1`, ...), so that the style sheet of the page determines them for light and dark
displays. This module knows numbers and labels, not what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

__all__ = ["Bar", "Group", "Line", "bars", "legend", "lines", "stacks"]

_WIDTH = 860
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 8, 14, 26


class Bar(NamedTuple):
    """A value with its spread; `colour` is an index into the page's colours, `hint` is the tooltip."""

    value: float
    low: float
    high: float
    colour: int
    hint: str


class Group(NamedTuple):
    label: str
    bars: Sequence[Bar]


class Line(NamedTuple):
    label: str
    values: Sequence[float]
    colour: int


def bars(groups: Sequence[Group], line_at: float, height: int = 300) -> str:
    """Returns grouped bars from zero with whiskers, and a dashed horizontal line."""
    most = max([line_at, *(max(bar.value, bar.high) for group in groups for bar in group.bars)]) * 1.08
    step = _tick(most)
    parts = [_grid(most, step, height), _across(line_at, most, height)]
    slot = (_WIDTH - _LEFT - _RIGHT) / max(len(groups), 1)
    for i, group in enumerate(groups):
        start = _LEFT + i * slot
        parts += [
            _bar(bar, start + slot * _place(j, len(group.bars)), slot, len(group.bars), most, height)
            for j, bar in enumerate(group.bars)
        ]
        parts.append(_text(start + slot / 2, height - 8, group.label))
    return _svg(height, parts, "Speed-up by kind")


def stacks(rows: Mapping[str, Sequence[float]], names: Sequence[str], ramp: str = "r", unit: str = "") -> str:
    """Returns a stacked horizontal bar per row; the longest sum has the whole width."""
    longest = max((sum(values) for values in rows.values()), default=1.0) or 1.0
    height, left = 30 * len(rows) + 4, 110
    parts = []
    for i, (label, values) in enumerate(rows.items()):
        x = float(left)
        parts.append(_text(left - 8, 30 * i + 19, label, anchor="end"))
        for j, value in enumerate(values):
            width = (_WIDTH - left - _RIGHT) * value / longest
            shown = f"{value:.0%}" if not unit else f"{value:.2f} {unit}"
            parts.append(_rect(x, 30 * i + 4, width, 22, f"{ramp}{j}", f"{label}, {names[j]}: {shown}"))
            if width > 44:
                parts.append(_text(x + width / 2, 30 * i + 19, shown, f"in {ramp}{j}t"))
            x += width
    return _svg(height, parts, "Shares")


def lines(found: Sequence[Line], height: int = 220) -> str:
    """Returns lines over depth 1, 2, ..., with values from 0 to 1."""
    deepest = max((len(line.values) for line in found), default=1)
    parts = [_grid(1.0, 0.25, height)]

    def place(depth: int) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (depth - 0.5) / deepest

    for line in found:
        points = [(place(i + 1), _y(value, 1.0, height)) for i, value in enumerate(line.values)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline class="s{line.colour} stroke" points="{path}"/>')
        for depth, (x, y) in enumerate(points, 1):
            hint = f"{line.label}, depth {depth}: {line.values[depth - 1]:.0%}"
            parts.append(
                f'<circle class="s{line.colour}" cx="{x:.1f}" cy="{y:.1f}" r="3">{_hint(hint)}</circle>'
            )
    parts += [_text(place(depth), height - 8, str(depth)) for depth in range(1, deepest + 1)]
    return _svg(height, parts, "Share by depth")


def legend(names: Sequence[str], ramp: str = "s") -> str:
    items = [f'<span><i class="{ramp}{i}"></i>{escape(name)}</span>' for i, name in enumerate(names)]
    return f'<div class="legend">{"".join(items)}</div>'


def _place(j: int, count: int) -> float:
    return 0.08 + 0.84 * (j + 0.5) / count


def _bar(bar: Bar, x: float, slot: float, count: int, most: float, height: int) -> str:
    width = min(0.84 * slot / count * 0.88, 46.0)
    top, bottom = _y(bar.value, most, height), _y(0.0, most, height)
    shape = _rect(x - width / 2, top, width, bottom - top, f"s{bar.colour}", bar.hint)
    whisker = (
        f'<line class="whisker" x1="{x:.1f}" x2="{x:.1f}" y1="{_y(bar.low, most, height):.1f}" '
        f'y2="{_y(bar.high, most, height):.1f}"/>'
    )
    return shape + whisker + _text(x, bottom - 5, f"{bar.value:.2f}", f"in s{bar.colour}t small")


def _grid(most: float, step: float, height: int) -> str:
    marks = []
    value = 0.0
    while value <= most:
        y = _y(value, most, height)
        marks.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        marks.append(_text(_LEFT - 6, y + 4, f"{value:g}", "axis", "end"))
        value = round(value + step, 6)
    return "".join(marks)


def _across(value: float, most: float, height: int) -> str:
    y = _y(value, most, height)
    return f'<line class="across" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _tick(most: float) -> float:
    return next((step for step in (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0) if most / step <= 7), most / 5)


def _y(value: float, most: float, height: int) -> float:
    return _TOP + (height - _TOP - _BOTTOM) * (1.0 - value / most)


def _rect(x: float, y: float, width: float, height: float, kind: str, hint: str) -> str:
    size = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.0):.1f}" height="{max(height, 0.0):.1f}"'
    return f'<rect class="{kind}" {size}>{_hint(hint)}</rect>'


def _text(x: float, y: float, words: str, kind: str = "axis", anchor: str = "middle") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _hint(words: str) -> str:
    return f"<title>{escape(words)}</title>"


def _svg(height: int, parts: Sequence[str], label: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )
