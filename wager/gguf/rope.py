"""The rotary embedding that a GGUF file states, as the `rope_parameters` of a config.json.

A file of Llama 3.1 or newer has no parameters for its scaling, only the factor of every frequency in a
tensor; the parameters are found again by comparing these factors with those of the published scalings.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from itertools import product
from typing import Any

from wager.errors import WeightsError
from wager.gguf.fields import Fields

__all__ = ["DEFAULT_THETA", "FACTORS", "llama3_factors", "read_rope"]

FACTORS = "rope_freqs.weight"
"""The tensor of frequency factors."""
DEFAULT_THETA = 10_000.0
"""The base of a file without `rope.freq_base`, as in llama.cpp."""
_PUBLISHED = tuple(product((8.0, 32.0, 16.0, 4.0), (8192, 4096)))
"""Factor and original length of published llama3 scalings."""


def read_rope(fields: Fields, head_dim: int, theta: float) -> dict[str, Any]:
    """Returns the rope parameters. Raises ModelError if the file states what Wager does not compute."""
    rotated = fields.count(".rope.dimension_count") if ".rope.dimension_count" in fields else head_dim
    if rotated != head_dim:
        raise fields.fault(
            ".rope.dimension_count",
            f"is {rotated}, but heads have {head_dim}: a partial rotation is not supported",
        )
    if FACTORS in fields.header.tensors:
        return _from_factors(fields, head_dim, theta)
    kind = fields.get(".rope.scaling.type")
    if kind in (None, "none"):
        older = fields.get(".rope.scale_linear")
        if older in (None, 1.0):
            return {"rope_type": "default", "rope_theta": theta}
        return {"rope_type": "linear", "rope_theta": theta, "factor": fields.number(".rope.scale_linear")}
    if kind not in ("linear", "yarn"):
        raise fields.fault(".rope.scaling.type", f"is {kind!r}; none, linear and yarn are supported")
    found: dict[str, Any] = {
        "rope_type": kind,
        "rope_theta": theta,
        "factor": fields.number(".rope.scaling.factor"),
    }
    if kind == "yarn":
        found["original_max_position_embeddings"] = fields.count(".rope.scaling.original_context_length")
        for name, key in (("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")):
            if f".rope.scaling.{key}" in fields:
                found[name] = fields.number(f".rope.scaling.{key}")
    return found


def _from_factors(fields: Fields, head_dim: int, theta: float) -> dict[str, Any]:
    stated = _floats(fields)
    if len(stated) != head_dim // 2:
        raise WeightsError(
            f"has {len(stated)} factors, but heads of {head_dim} need {head_dim // 2}", FACTORS
        )
    for factor, original in _PUBLISHED:
        known = llama3_factors(head_dim, theta, factor, original)
        if all(math.isclose(one, other, rel_tol=1e-4) for one, other in zip(stated, known, strict=True)):
            return {
                "rope_type": "llama3",
                "rope_theta": theta,
                "factor": factor,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": original,
            }
    if all(one == 1.0 for one in stated):
        return {"rope_type": "default", "rope_theta": theta}
    raise WeightsError("has factors of no published scaling; they are not supported", FACTORS)


def _floats(fields: Fields) -> Sequence[float]:
    entry = fields.header.tensors[FACTORS]
    if entry.type.name != "F32":
        raise WeightsError(f"has the type {entry.type.name}; expected F32", FACTORS)
    with fields.header.path.open("rb") as file:
        file.seek(entry.start)
        stored = file.read(entry.num_bytes)
    return struct.unpack(f"<{entry.num_bytes // 4}f", stored)


def llama3_factors(head_dim: int, theta: float, factor: float, original: int) -> list[float]:
    """Returns by how much the llama3 scaling divides each frequency; 1 and 4 are its other parameters."""
    found = []
    for index in range(head_dim // 2):
        turns = original / (2 * math.pi * theta ** (2 * index / head_dim))
        blend = min(1.0, max(0.0, (turns - 1.0) / (4.0 - 1.0)))
        found.append(1.0 / ((1.0 - blend) / factor + blend))
    return found
