"""Cost curves for the replay: three measured curves by name, others from a JSON file.

A curve has the time of one draft pass, optionally by the number of guesses, and the time of a target pass by
the number of tokens, root included. Between the points it is linear; beyond them it continues with the last
slope. A policy does not see the curves; it sees the times of the steps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wager.costs import MAX_TOKENS
from wager.errors import InputError
from wager.policy.base import FloatArray


class CostCurve:
    """Milliseconds by tokens in the pass: linear between points, the last slope beyond."""

    def __init__(self, points: Mapping[int, float], name: str = "curve") -> None:
        sizes = sorted(points)
        times = [float(points[size]) for size in sizes]
        if not sizes or sizes[0] < 1:
            raise InputError("needs at least one point, sizes from 1", field=f"{name}.verify_ms")
        if not all(math.isfinite(t) and t > 0 for t in times):
            raise InputError("every time must be a positive number", field=f"{name}.verify_ms")
        self.name = name
        self._sizes = np.array(sizes, np.float64)
        self._times = np.array(times)

    def __call__(self, num_tokens: int) -> float:
        return float(self.table(np.array([num_tokens], np.float64))[0])

    def table(self, sizes: FloatArray) -> FloatArray:
        times = np.interp(sizes, self._sizes, self._times)
        if len(self._sizes) > 1:
            slope = (self._times[-1] - self._times[-2]) / (self._sizes[-1] - self._sizes[-2])
            times = times + np.maximum(sizes - self._sizes[-1], 0.0) * slope
        return np.asarray(np.maximum(times, 1e-9))

    @property
    def by_size(self) -> FloatArray:
        """The times of all sizes that a cost model knows, index 0 unused."""
        return self.table(np.maximum(np.arange(MAX_TOKENS + 1, dtype=np.float64), 1.0))

    def scaled(self, factor: float) -> CostCurve:
        points = {int(s): float(t) * factor for s, t in zip(self._sizes, self._times, strict=True)}
        return CostCurve(points, self.name)


_MEASURED: dict[str, tuple[float, dict[int, float]]] = {
    # 2 CPU cores, float32, 8 layers x 256, eager
    "cpu": (1.2, {1: 4.455, 8: 7.217, 16: 12.44, 32: 15.2, 64: 28.0}),
    # one H200, bf16, the shape of an 8B model, context of 1024 tokens
    "h200": (0.8, {1: 5.06, 2: 5.16, 4: 5.19, 8: 5.4, 16: 5.42, 32: 5.5, 64: 5.82, 128: 6.79}),
    # a mixture of experts at batch 1: more tokens activate more experts
    "moe": (0.8, {1: 5.0, 2: 7.5, 4: 10.5, 8: 14.0, 16: 19.0, 32: 24.0, 64: 30.0, 128: 36.0}),
}

NAMES = tuple(_MEASURED)
EXTRA_COSTS = ("decide_ms", "row_ms", "begin_ms", "ask_ms")
"""Names of the additional times that a curve may have."""


@dataclass(frozen=True)
class StepCosts:
    """The time of steps in a replay: `draft_ms` of a whole draft, and `verify` by the number of tokens in the
    pass.
    """

    name: str
    draft_ms: float
    verify: CostCurve
    draft_by_depth: Mapping[int, float] | None = None
    """Times of shorter drafts by their number of guesses; None: every draft takes `draft_ms`."""
    decide_ms: float = 0.0
    """Time that an adaptive policy adds to a step with a draft for deciding, arranging and learning."""
    row_ms: float = 0.0
    """Time that each row after the first adds to a draft, including its host work."""
    begin_ms: float = 0.0
    """Time that the first draft after a plain step adds, because it reads the tokens that the
    drafter missed.
    """
    ask_ms: float = 0.0
    """Time per row that a plain step takes longer if the policy considered drafting, because nothing was
    prelaunched.
    """

    def plain_ms(self, rows: int = 1) -> float:
        return self.verify(rows)

    def draft_time_ms(self, depth: int = 0) -> float:
        """Returns the time of one draft pass with `depth` guesses; 0 stands for a whole draft."""
        if depth < 1 or self.draft_by_depth is None:
            return self.draft_ms
        depths = sorted(self.draft_by_depth)
        return float(np.interp(depth, depths, [self.draft_by_depth[known] for known in depths]))


def step_costs(
    name: str, draft_ms: float | Mapping[int, float], points: Mapping[int, float], **others: float
) -> StepCosts:
    """Returns checked costs; in a table of drafts the largest depth is the whole draft. Raises InputError.

    `others` are times by the names of EXTRA_COSTS.
    """
    verify = CostCurve(points, name)
    others = {one: _time(time, f"{name}.{one}") for one, time in others.items()}
    if not isinstance(draft_ms, Mapping):
        return StepCosts(name, _time(draft_ms, f"{name}.draft_ms"), verify, None, **others)
    if not draft_ms or min(draft_ms) < 1:
        raise InputError("needs at least one time, with depths from 1", field=f"{name}.draft_ms")
    times = {depth: _time(time, f"{name}.draft_ms[{depth}]") for depth, time in draft_ms.items()}
    return StepCosts(name, times[max(times)], verify, times, **others)


def _time(time_ms: float, field: str) -> float:
    if not (math.isfinite(time_ms) and time_ms >= 0):
        raise InputError(f"{time_ms!r} is not a time of at least 0", field=field)
    return float(time_ms)


def load_costs(name_or_path: str) -> StepCosts:
    """Returns a curve by name, or from a JSON file {"name", "draft_ms", "verify_ms": {"1": .., "8": ..}}.

    `draft_ms` is one time or a table by the number of guesses; the times of EXTRA_COSTS are optional.
    """
    if name_or_path in _MEASURED:
        draft_ms, points = _MEASURED[name_or_path]
        return step_costs(name_or_path, draft_ms, points)
    path = Path(name_or_path)
    if path.suffix != ".json" and not path.exists():
        raise InputError(f"unknown curve {name_or_path!r}: {', '.join(NAMES)}, or a JSON file", field="costs")
    return _parse(_read(path), path)


def _read(path: Path) -> dict[str, object]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", field="costs") from error
    except ValueError as error:
        raise InputError(f"{path} is not valid JSON: {error}", field="costs") from error
    if not isinstance(data, dict):
        raise InputError(f"{path} must hold an object", field="costs")
    return data


def _parse(data: dict[str, object], path: Path) -> StepCosts:
    unknown = sorted(set(data) - {"name", "draft_ms", "verify_ms", *EXTRA_COSTS})
    if unknown:
        raise InputError(f"{path} has an unknown key {unknown[0]!r}", field="costs")
    name = data.get("name", path.stem)
    if not isinstance(name, str) or not name:
        raise InputError(f"{name!r} is not a name", field="costs.name")
    points = _table(data.get("verify_ms"), f"{name}.verify_ms", "tokens")
    draft, field = data.get("draft_ms"), f"{name}.draft_ms"
    times = _table(draft, field, "guesses") if isinstance(draft, dict) else _number(draft, field)
    others = {one: _number(data[one], f"{name}.{one}") for one in EXTRA_COSTS if one in data}
    return step_costs(name, times, points, **others)


def _table(table: object, field: str, counted: str) -> dict[int, float]:
    """Reads a table of times whose keys are numbers in JSON text."""
    if not isinstance(table, dict) or not table:
        raise InputError('needs at least one point, such as {"1": 5.0}', field=field)
    points = {}
    for size, time in table.items():
        if not str(size).isdecimal() or int(size) < 1:
            raise InputError(f"{size!r} is not a number of {counted}", field=field)
        points[int(size)] = _number(time, f"{field}[{size}]")
    return points


def _number(value: object, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{value!r} is not a number", field=field)
    return float(value)
