"""The picture of `wager bench`: speed-ups by kind, and for one policy its bets, its acceptance and its time.

It draws finished figures and computes nothing. It is imported only for a picture, and opens no window.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from wager.bench.figures import (
    BET_GROUPS,
    STAGES_SHOWN,
    Figures,
    Summary,
    drawn,
    grouped_bets,
    stages_of,
    with_steps,
)
from wager.bench.plan import BASELINE
from wager.bench.report import Report

__all__ = ["draw"]

# Okabe and Ito's palette: distinct for every common kind of colour vision.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C8C8C")
_BET_COLOURS = ("#D9D9D9", "#CFE3F2", "#9CC7E5", "#5BA3D3", "#2272B2", "#0B3F73")


def draw(report: Report, path: Path) -> None:
    """Write the picture; its format follows the file's ending."""
    summary = report.summary
    figure = Figure(figsize=(13, 8.4), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, 3, height_ratios=(1.15, 1))
    _draw_speedups(figure.add_subplot(grid[0, :]), summary)
    shown = with_steps(summary)
    if shown:
        _draw_bets(figure.add_subplot(grid[1, 0]), summary, shown[0])
        _draw_acceptance(figure.add_subplot(grid[1, 1]), summary, shown[0])
        _draw_stages(figure.add_subplot(grid[1, 2]), summary, [BASELINE, *shown][:4])
    figure.suptitle(report.title, x=0.01, ha="left", fontsize=10, color="#555555")
    figure.savefig(path, dpi=150)


def _draw_speedups(axes: Any, summary: Summary) -> None:
    series = drawn(summary)
    groups = [*summary.kinds, "geo. mean"]
    width = 0.84 / max(len(series), 1)
    for i, one in enumerate(series):
        places = np.arange(len(summary.kinds)) + (i - (len(series) - 1) / 2) * width
        found = [one.spreads.get(kind) for kind in summary.kinds]
        means = [spread.mean if spread else np.nan for spread in found]
        around = [
            (spread.mean - spread.low, spread.high - spread.mean) if spread else (0, 0) for spread in found
        ]
        # One outlier among the prompts can move the mean outside the whiskers.
        bars = np.clip(np.array(around).T, 0.0, None)
        colour = _COLOURS[i % len(_COLOURS)]
        axes.bar(places, means, width * 0.92, color=colour, label=one.name)
        axes.errorbar(places, means, bars, fmt="none", ecolor="#333333", elinewidth=1, capsize=2.5)
        overall = summary.overall.get(one.name, summary.best_fixed_overall or np.nan)
        mean_place = len(summary.kinds) + (i - (len(series) - 1) / 2) * width
        axes.bar([mean_place], [overall], width * 0.92, color=colour)
        for place, value in zip([*places, mean_place], [*means, overall], strict=True):
            axes.annotate(
                f"{value:.2f}",
                (place, 0),
                (0, 3),
                textcoords="offset points",
                ha="center",
                fontsize=7,
                color="white",
            )
    axes.axhline(1.0, color="#333333", linewidth=1.0, linestyle=(0, (4, 3)))
    axes.set_xticks(range(len(groups)), groups)
    axes.tick_params(axis="x", length=0)
    axes.set_title(
        f"Speed-up over plain decoding, whole request (whiskers: 10 % to 90 % of prompts; {BASELINE} = 1)",
        loc="left",
        fontsize=11,
    )
    axes.legend(ncols=min(max(len(series), 1), 7), frameon=False, loc="upper left", fontsize=9)
    axes.set_ylim(0, 1.18 * axes.get_ylim()[1])
    _tidy(axes, "y")


def _draw_bets(axes: Any, summary: Summary, policy: str) -> None:
    kinds = list(reversed(summary.kinds))
    shares = np.array([_shares(summary.cells[policy, kind]) for kind in kinds])
    left = np.zeros(len(kinds))
    for i, group in enumerate(BET_GROUPS):
        axes.barh(kinds, shares[:, i], left=left, color=_BET_COLOURS[i], label=group, height=0.7)
        left += shares[:, i]
    axes.set_title(f"{policy}: guesses verified per step", loc="left", fontsize=11)
    axes.set_xlabel("share of steps")
    axes.set_xlim(0, 1)
    _legend_below(axes, -0.16)
    _tidy(axes, "x")


def _shares(figures: Figures) -> tuple[float, ...]:
    return grouped_bets(figures.steps) if figures.steps else (0.0,) * len(BET_GROUPS)


def _draw_acceptance(axes: Any, summary: Summary, policy: str) -> None:
    for i, kind in enumerate(summary.kinds):
        steps = summary.cells[policy, kind].steps
        if steps and steps.acceptance_by_depth:
            depths = range(1, len(steps.acceptance_by_depth) + 1)
            colour = _COLOURS[i % len(_COLOURS)]
            axes.plot(depths, steps.acceptance_by_depth, "o-", color=colour, label=kind, markersize=3)
    axes.set_title(f"{policy}: kept at least this many guesses", loc="left", fontsize=11)
    axes.set_xlabel("depth")
    axes.set_ylabel("share of steps with a bet")
    axes.set_ylim(0, 1)
    if axes.lines:
        axes.legend(frameon=False, fontsize=8)
    _tidy(axes, "y")


def _draw_stages(axes: Any, summary: Summary, policies: list[str]) -> None:
    """Milliseconds per token by stage, the mean of the kinds; short ones are combined."""
    found = {name: stages_of(summary, name) for name in policies}
    bottom = np.zeros(len(policies))
    for i, stage in enumerate(STAGES_SHOWN):
        values = np.array([found[name].get(stage, 0.0) for name in policies])
        axes.bar(policies, values, bottom=bottom, color=_COLOURS[i % len(_COLOURS)], label=stage, width=0.6)
        bottom += values
    axes.set_title("Time per token by stage", loc="left", fontsize=11)
    axes.set_ylabel("ms, mean of the kinds")
    _legend_below(axes, -0.1)
    _tidy(axes, "y")


def _legend_below(axes: Any, place: float) -> None:
    """Draws six legend entries per line under a panel."""
    where = {"loc": "upper center", "bbox_to_anchor": (0.5, place)}
    axes.legend(ncols=6, frameon=False, fontsize=8, handlelength=1, columnspacing=1, **where)


def _tidy(axes: Any, grid: str) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, color="#E3E3E3", linewidth=0.8)
    axes.set_axisbelow(True)
