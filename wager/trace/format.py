"""The trace file: what a drafter offered at every position of its target's output. See docs/trace-format.md.

An .npz file has, per kind and temperature, `{kind}_{t}_logprobs` [sequences, positions, depths, ranks] and
`{kind}_{t}_rank` [sequences, positions, depths]; optionally `{kind}_{t}_target_p1` [sequences, positions] and
`meta` (JSON text). This module checks everything it reads; it does not replay.
"""

from __future__ import annotations

import json
import re
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from wager.errors import TraceError

AnyArray = npt.NDArray[Any]

PADDING = -2
"""The rank at positions after the end of a sequence that is shorter than the array."""

_KEY = re.compile(r"(?P<kind>.+)_(?P<t>t\d+)_(?P<what>logprobs|rank|target_p1)")


@dataclass(frozen=True)
class Trace:
    """The sequences of one kind at one temperature; shorter sequences are padded with the rank PADDING."""

    kind: str
    temperature: str
    """Temperature as spelled in the array names: t0 is greedy, t08 is 0.8."""
    logprobs: npt.NDArray[np.floating]
    ranks: npt.NDArray[np.integer]
    target_p1: npt.NDArray[np.floating] | None = None
    """The target's highest probability when it chose the token before each position; it is known before a
    step.
    """
    spine_only: bool = False
    """Whether only rank 0 has deeper guesses, as with an autoregressive drafter."""

    @property
    def num_sequences(self) -> int:
        return int(self.ranks.shape[0])

    @property
    def num_depths(self) -> int:
        return int(self.ranks.shape[2])

    def length(self, sequence: int) -> int:
        """Returns the number of positions of this sequence, up to its padding."""
        padded = np.flatnonzero(self.ranks[sequence, :, 0] == PADDING)
        return int(padded[0]) if len(padded) else int(self.ranks.shape[1])

    def was_cut(self, sequence: int) -> bool:
        """Whether this text ended at the token limit, which an engine knows before it decides.

        In the recording the last position of such a text has no offer although the position before it has
        one.
        """
        length = self.length(sequence)
        offered = self.logprobs[sequence, :length, 0, 0] > -np.inf
        return length > 1 and bool(offered[-2]) and not offered[-1]


@dataclass(frozen=True)
class TraceFile:
    """All traces of a file and its metadata."""

    traces: tuple[Trace, ...]
    meta: dict[str, object] = field(default_factory=dict)

    @property
    def noised(self) -> bool:
        """Whether the scores come from the noised, scaled draft logits instead of the plain ones."""
        return bool(self.meta.get("noised", False))


# Errors of numpy and zipfile for files that are missing, truncated, of another format or pickled. A single
# array (.npy) is read without an error and then fails as an archive with AttributeError or TypeError.
_UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    KeyError,
    NotImplementedError,
    AttributeError,
    TypeError,
)


def demo_traces() -> TraceFile:
    """Returns the small trace that ships with the package."""
    with resources.files("wager.trace").joinpath("demo.npz").open("rb") as file:
        return load_traces(file)


def load_traces(source: Path | IO[bytes]) -> TraceFile:
    """Reads and checks a trace file. Raises TraceError that names the array at fault."""
    shown = getattr(source, "name", source)
    try:
        with np.load(source, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except _UNREADABLE as error:
        reason = error.strerror if isinstance(error, OSError) else None
        detail = reason or "not a readable .npz file"
        raise TraceError(f"cannot read {shown}: {detail}", field="traces") from error
    meta = _meta(arrays.pop("meta", None))
    spine_only = bool(meta.get("spine_only", False))
    traces = tuple(_trace(kind, t, parts, spine_only) for (kind, t), parts in _grouped(arrays).items())
    if not traces:
        raise TraceError(f"{shown} holds no trace", field="traces")
    return TraceFile(traces, meta)


def save_traces(path: Path, traces: Iterable[Trace], meta: dict[str, object] | None = None) -> None:
    """Checks and writes a compressed trace file with float16 log-probabilities and int8 ranks."""
    arrays: dict[str, AnyArray] = {}
    traces, meta = list(traces), dict(meta or {})
    if any(trace.spine_only for trace in traces):
        if not all(trace.spine_only for trace in traces):
            raise TraceError("must hold for all traces of a file or for none", field="spine_only")
        meta["spine_only"] = True
    for trace in traces:
        _check(trace)
        stem = f"{trace.kind}_{trace.temperature}"
        arrays[f"{stem}_logprobs"] = trace.logprobs.astype(np.float16)
        arrays[f"{stem}_rank"] = trace.ranks.astype(np.int8)
        if trace.target_p1 is not None:
            arrays[f"{stem}_target_p1"] = trace.target_p1.astype(np.float16)
    if meta:
        arrays["meta"] = np.array(json.dumps(meta, sort_keys=True))
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def _meta(array: AnyArray | None) -> dict[str, object]:
    if array is None:
        return {}
    try:
        data = json.loads(str(array))
    except ValueError as error:
        raise TraceError("is not JSON text", field="meta") from error
    if not isinstance(data, dict):
        raise TraceError("must hold an object", field="meta")
    return data


def _grouped(
    arrays: dict[str, AnyArray],
) -> dict[tuple[str, str], dict[str, AnyArray]]:
    groups: dict[tuple[str, str], dict[str, AnyArray]] = {}
    for name, array in arrays.items():
        match = _KEY.fullmatch(name)
        if match is None:
            raise TraceError("is not {kind}_{t}_logprobs, _rank or _target_p1", field=name)
        groups.setdefault((match["kind"], match["t"]), {})[match["what"]] = array
    return groups


def _trace(kind: str, t: str, parts: dict[str, AnyArray], spine_only: bool) -> Trace:
    for what in ("logprobs", "rank"):
        if what not in parts:
            raise TraceError("is missing", field=f"{kind}_{t}_{what}")
    for what, array in parts.items():
        if array.dtype.kind not in "fiu" or (what == "rank" and array.dtype.kind == "f"):
            raise TraceError(f"has type {array.dtype}", field=f"{kind}_{t}_{what}")
    trace = Trace(kind, t, parts["logprobs"], parts["rank"], parts.get("target_p1"))
    _check(trace)
    p1 = None if trace.target_p1 is None else trace.target_p1.astype(np.float32)
    return Trace(kind, t, trace.logprobs.astype(np.float32), trace.ranks.astype(np.int16), p1, spine_only)


def _check(trace: Trace) -> None:
    stem = f"{trace.kind}_{trace.temperature}"
    shape, ranks = trace.logprobs.shape, trace.ranks
    if len(shape) != 4 or 0 in shape:
        expected = "[sequences, positions, depths, ranks]"
        raise TraceError(f"has shape {shape}, not {expected}", field=f"{stem}_logprobs")
    if ranks.shape != shape[:3]:
        raise TraceError(f"has shape {ranks.shape}, not {shape[:3]}", field=f"{stem}_rank")
    if ranks.min() < PADDING or ranks.max() >= shape[3]:
        raise TraceError(f"has a rank outside {PADDING}..{shape[3] - 1}", field=f"{stem}_rank")
    if np.isnan(trace.logprobs).any() or (trace.logprobs > 1e-3).any():
        raise TraceError("has a NaN or positive log-probability", field=f"{stem}_logprobs")
    if any(trace.length(i) == 0 for i in range(trace.num_sequences)):
        raise TraceError("has a sequence without positions", field=f"{stem}_rank")
    p1 = trace.target_p1
    if p1 is not None and (p1.shape != shape[:2] or not ((p1 >= 0) & (p1 <= 1.001)).all()):
        raise TraceError("needs a probability per sequence and position", field=f"{stem}_target_p1")
