"""Rotary position embedding: frequencies for default, linear, llama3 and yarn scaling, and the rotation.

Angles are computed in float32 for every model dtype, as in the published models. Pairs are (i, i + half), the
half-split convention of the weight files. `read_rope` accepts both spellings of a config: `rope_parameters`,
or `rope_theta` with `rope_scaling`. The decoders and the block drafter use this.

    frequency_i = theta^(-2i / head_dim)          yarn: arXiv 2309.00071; llama3: the Llama 3.1 release
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wager.errors import ModelError

ROPE_TYPES = ("default", "linear", "llama3", "yarn")
_NEEDS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": (),
}


@dataclass(frozen=True)
class RopeSpec:
    """The parameters of the angles; each scaling type uses only some of the fields below `theta`."""

    head_dim: int
    theta: float = 10_000.0
    type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True


class Rotation(NamedTuple):
    """Cosines and signed sines of the tokens of a pass, each [tokens, 1, head_dim]."""

    cos: Tensor
    sin: Tensor


def read_rope(config: Mapping[str, Any], head_dim: int) -> RopeSpec:
    """Reads the rope of a model config; raises ModelError that names an unsupported or missing value."""
    values = _rope_values(config)
    if any(isinstance(value, Mapping) for value in values.values()):
        raise ModelError(
            "config rope_parameters: different rotary embeddings per layer type are not supported"
        )
    kind = values.get("rope_type") or "default"
    if kind not in ROPE_TYPES:
        raise ModelError(f"config rope_type {kind!r} is not supported; known: {', '.join(ROPE_TYPES)}")
    for name in _NEEDS[kind]:
        if values.get(name) is None:
            raise ModelError(f"config rope_parameters.{name} is missing for rope_type {kind!r}")
    partial = values.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    if partial != 1.0:
        raise ModelError(f"config partial_rotary_factor = {partial}: only a full rotation is supported")
    theta = values.get("rope_theta") or config.get("rope_theta") or 10_000.0
    base = RopeSpec(head_dim=head_dim, theta=float(theta), type=kind)
    return base if kind == "default" else _read_scaling(base, values, config)


def _rope_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all rope fields in the newer spelling; if a config has both, the older spelling wins."""
    values = dict(config.get("rope_parameters") or {})
    older = dict(config.get("rope_scaling") or {})
    for part in (older, values):
        if "type" in part:
            part.setdefault("rope_type", part.pop("type"))
    return values | older


def has_theta(config: Mapping[str, Any]) -> bool:
    """Whether the config specifies theta, in either spelling."""
    return bool(_rope_values(config).get("rope_theta") or config.get("rope_theta"))


def _read_scaling(base: RopeSpec, values: Mapping[str, Any], config: Mapping[str, Any]) -> RopeSpec:
    longest = config.get("max_position_embeddings") or 0
    original = (
        config.get("original_max_position_embeddings")
        or values.get("original_max_position_embeddings")
        or longest
    )
    if base.type != "linear" and not original:
        raise ModelError("config rope_parameters.original_max_position_embeddings is missing")
    factor = values.get("factor") or (longest / original if original else 1.0)
    return RopeSpec(
        head_dim=base.head_dim,
        theta=base.theta,
        type=base.type,
        factor=float(factor),
        low_freq_factor=float(values.get("low_freq_factor") or 1.0),
        high_freq_factor=float(values.get("high_freq_factor") or 4.0),
        original_max_position=int(original),
        beta_fast=float(values.get("beta_fast") or 32),
        beta_slow=float(values.get("beta_slow") or 1),
        attention_factor=_attention_factor(base.type, float(factor), values),
        truncate=bool(values.get("truncate", True)),
    )


def _attention_factor(kind: str, factor: float, values: Mapping[str, Any]) -> float:
    """Returns yarn's scale of cosines and sines; 1 for the other types."""
    if kind != "yarn":
        return 1.0
    if values.get("attention_factor") is not None:
        return float(values["attention_factor"])

    def log_scale(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    mscale, mscale_all_dim = values.get("mscale"), values.get("mscale_all_dim")
    if mscale and mscale_all_dim:
        return log_scale(float(mscale)) / log_scale(float(mscale_all_dim))
    return log_scale(1.0)


def frequencies(spec: RopeSpec) -> Tensor:
    """Returns [head_dim / 2] float32 angles per position."""
    exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.float32) / spec.head_dim
    plain = 1.0 / (spec.theta**exponents)
    if spec.type == "linear":
        return plain / spec.factor
    if spec.type == "llama3":
        return _llama3(spec, plain)
    if spec.type == "yarn":
        return _yarn(spec, plain)
    return plain


def _llama3(spec: RopeSpec, plain: Tensor) -> Tensor:
    """Divides the frequencies of long wavelengths by `factor`, keeps short ones, and blends between."""
    wavelength = 2 * math.pi / plain
    turns = spec.original_max_position / wavelength
    blend = (turns - spec.low_freq_factor) / (spec.high_freq_factor - spec.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return (1 - blend) * plain / spec.factor + blend * plain


def _yarn(spec: RopeSpec, plain: Tensor) -> Tensor:
    """Keeps dimensions with many turns, slows those with few turns, and interpolates linearly between."""

    def dimension(turns: float) -> float:
        ratio = spec.original_max_position / (turns * 2 * math.pi)
        return spec.head_dim * math.log(ratio) / (2 * math.log(spec.theta))

    low, high = dimension(spec.beta_fast), dimension(spec.beta_slow)
    if spec.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spec.head_dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(spec.head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return plain / spec.factor * ramp + plain * (1 - ramp)


class Rotary:
    """The angles of a model on its device. On the CPU they come from a table that grows on demand.

    There the cosines of a few numbers cost as much as all small operations of a layer. On other devices they
    are cheap, and reading the highest position would need a synchronisation.
    """

    def __init__(self, spec: RopeSpec, dtype: torch.dtype, device: torch.device | str) -> None:
        self.spec, self.dtype = spec, dtype
        half = frequencies(spec)
        self._full = torch.cat((half, half)).to(device)
        sign = torch.ones(spec.head_dim, device=device)
        sign[: spec.head_dim // 2] = -1
        self._cos_scale = spec.attention_factor
        self._sin_scale = sign * spec.attention_factor
        self._table = torch.empty(0, 2, spec.head_dim, dtype=dtype, device=device)

    def at(self, positions: Tensor) -> Rotation:
        """Returns the rotation of a pass, which all its layers share."""
        if positions.device.type != "cpu" or positions.shape[0] == 0:
            return self.compute(positions)
        both = self.table(int(positions.max()) + 1).index_select(0, positions)
        return Rotation(both[:, :1], both[:, 1:])

    def table(self, length: int) -> Tensor:
        """Returns cosines and sines [positions, 2, head_dim] of at least the first `length` positions, on a
        CPU.
        """
        if length > self._table.shape[0]:
            rotation = self.compute(torch.arange(max(1024, 2 * length)))
            self._table = torch.cat((rotation.cos, rotation.sin), dim=1)
        return self._table

    def compute(self, positions: Tensor) -> Rotation:
        """Computes the rotation of a pass without the table."""
        angles = torch.outer(positions.to(torch.float32), self._full)
        cos = (angles.cos() * self._cos_scale).to(self.dtype)
        sin = (angles.sin() * self._sin_scale).to(self.dtype)
        return Rotation(cos.unsqueeze(1), sin.unsqueeze(1))


def rotate(x: Tensor, rotation: Rotation, out: Tensor | None = None) -> Tensor:
    """Rotates [tokens, heads, head_dim]; the sines carry the sign of the swapped half. `out` may be
    x itself.
    """
    swapped = x.roll(x.shape[-1] // 2, -1)
    return torch.addcmul(x * rotation.cos, swapped, rotation.sin, out=out)
