"""Plots `wager simulate`: bets over time for the first content and cost curve, and speeds by policy.

This file is imported only for --plot and opens no window.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from wager.bench.figures import geometric_mean
from wager.cli.simulate_table import display_temperature
from wager.trace.hindsight import BEST_FIXED_NAME, ORACLE_NAME
from wager.trace.replay import Replay
from wager.trace.simulate import PLAIN_NAME, REFERENCES, Comparison, Content, Run

# The palette of Okabe and Ito, whose colours are distinct for all common kinds of colour vision.
_COLOURS = ("#0072B2", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442")
_REFERENCE_COLOURS = {PLAIN_NAME: "#B5B5B5", BEST_FIXED_NAME: "#E69F00", ORACLE_NAME: "#4D4D4D"}
_DASHES = ("-", "--", "-.", ":")
_MEAN_STEPS = 40


def draw(runs: Sequence[Run], comparison: Comparison, path: Path) -> None:
    """Writes the plot in the format of the file's suffix."""
    figure = Figure(figsize=(13, 5), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    styles = _styles(comparison.policies)
    _draw_bets(left, runs, comparison, styles)
    _draw_speeds(right, runs, comparison, styles)
    handles, labels = right.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 8), frameon=False)
    figure.savefig(path, dpi=150)


def _styles(policies: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Returns colour and dash by policy, in drawing order; the last reference is drawn last."""
    requested = [name for name in policies if name not in REFERENCES]
    order = [*REFERENCES[:-1], *requested, REFERENCES[-1]]
    styles = {name: (colour, "-") for name, colour in _REFERENCE_COLOURS.items()}
    for i, name in enumerate(requested):
        styles[name] = (_COLOURS[i % len(_COLOURS)], _DASHES[i // len(_COLOURS) % len(_DASHES)])
    return {name: styles[name] for name in order}


def _draw_bets(axes: Any, runs: Sequence[Run], comparison: Comparison, styles: dict[str, Any]) -> None:
    content, costs = comparison.contents[0], comparison.costs[0]
    here = {run.cell.policy: run.replay for run in runs[: len(comparison.policies)]}
    for name, (colour, dash) in styles.items():
        if name != PLAIN_NAME:
            width = 1.2 if name in REFERENCES else 2.0
            axes.plot(*_moving_mean(here[name]), dash, color=colour, linewidth=width)
    if comparison.options.rows == 1:
        _mark_shifts(axes, content)
    where = f"{content.kind}, T = {display_temperature(content.temperature)}, {costs.name} costs"
    axes.set_title(f"Bets over time: {where}", loc="left", fontsize=11)
    axes.set_xlabel("tokens emitted")
    axes.set_ylabel(f"nodes verified per step (mean of {_MEAN_STEPS} steps)")
    axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
    axes.margins(x=0)
    _tidy(axes)


def _moving_mean(replay: Replay) -> tuple[Any, Any]:
    """Returns the emitted tokens at each step, and the moving mean of the verified nodes."""
    nodes = np.array([step.num_nodes for step in replay.steps], np.float64)
    starts = np.array([step.start for step in replay.steps])
    window = np.ones(min(_MEAN_STEPS, len(nodes)))
    return starts, np.convolve(nodes, window, "same") / np.convolve(np.ones(len(nodes)), window, "same")


def _mark_shifts(axes: Any, content: Content) -> None:
    sizes = [sum(trace.length(i) for i in range(trace.num_sequences)) for trace in content.traces]
    for end in list(accumulate(sizes))[:-1]:
        axes.axvline(end, color="#777777", linewidth=1.0, linestyle=(0, (2, 3)))
    if len(sizes) > 1:
        for start, trace in zip([0, *accumulate(sizes)], content.traces, strict=False):
            axes.annotate(
                trace.kind, (start, 1), (4, -4), ("data", "axes fraction"), "offset points", va="top"
            )


def _draw_speeds(axes: Any, runs: Sequence[Run], comparison: Comparison, styles: dict[str, Any]) -> None:
    """Draws a group of bars per cost curve and a bar per policy, with the mean over all contents."""
    speeds: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        speeds.setdefault((run.cell.policy, run.cell.costs), []).append(run.cell.tokens_per_s)
    curves = [curve.name for curve in comparison.costs]
    width = 0.84 / len(styles)
    for i, (name, (colour, dash)) in enumerate(styles.items()):
        means = [geometric_mean(speeds[name, curve]) for curve in curves]
        places = np.arange(len(curves)) + (i - (len(styles) - 1) / 2) * width
        hatch = None if dash == "-" else "//"
        bars = axes.bar(places, means, width * 0.94, color=colour, label=name, hatch=hatch, edgecolor="white")
        axes.bar_label(bars, fmt="%.0f", fontsize=8 if len(styles) * len(curves) <= 18 else 6, padding=2)
    axes.set_xticks(range(len(curves)), [f"{curve} costs" for curve in curves])
    axes.tick_params(axis="x", length=0)
    over = (
        "" if len(comparison.contents) == 1 else f" (geometric mean of {len(comparison.contents)} contents)"
    )
    axes.set_title(f"Tokens per second{over}", loc="left", fontsize=11)
    axes.set_ylabel("tokens per second")
    _tidy(axes)


def _tidy(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#E3E3E3", linewidth=0.8)
    axes.set_axisbelow(True)
