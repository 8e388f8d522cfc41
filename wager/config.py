"""Every setting of the engine, as fields of frozen dataclasses with a range and a help text each.

Values are checked when a dataclass is made. Command-line flags, environment variables, the configuration file
and docs/config.md are generated from these fields. This module does not import torch and does not know what
the values do; resolve.py determines where each value came from. Field names are unique over all sections, so
that a flag or a variable needs no section.
"""

from __future__ import annotations

import math
import re
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from typing import Any, NamedTuple, TypeVar

from wager.errors import ConfigError
from wager.pairs import DEMO

__all__ = [
    "REMOVED_FIELDS",
    "Allowed",
    "CacheConfig",
    "EngineConfig",
    "ModelConfig",
    "PolicyConfig",
    "PolicyParts",
    "SchedulerConfig",
    "Setting",
    "settings_of",
    "split_policy",
    "unknown_key",
    "with_values",
]

C = TypeVar("C")
REMOVED_FIELDS = {
    "bod_enabled": "policy = bod",
    "bod_mode": "policy = bod or policy = bod:tree",
    "gate": "policy = ema+NAME or policy = entropy+NAME",
}
"""Maps a field of an earlier version to the setting that replaces it."""
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass(frozen=True, slots=True)
class Allowed:
    """The values that a field accepts: a type with a range, a set of words, or text matching a pattern."""

    type: type
    low: float = -math.inf
    high: float = math.inf
    words: tuple[str, ...] = ()
    pattern: str = ""
    says: str = ""
    """Description for people, used where none can be generated from the other fields."""

    def __str__(self) -> str:
        if self.says:
            return self.says
        parts = [*self.words]
        if self.type is bool:
            parts.append("true or false")
        elif self.type is not str:
            parts.append(self._range())
        return " or ".join(part for part in [", ".join(parts[:-1]), *parts[-1:]] if part) or "a text"

    def _range(self) -> str:
        noun = "a whole number" if self.type is int else "a number"
        low, high = f"{self.low:.10g}", f"{self.high:.10g}"
        return f"{noun} from {low}" if math.isinf(self.high) else f"{noun} from {low} to {high}"

    def read(self, text: str) -> object:
        """Converts the text of a flag or variable to a value, or returns the text if that fails."""
        if self.type is bool:
            word = text.strip().lower()
            return True if word in _TRUE else False if word in _FALSE else text
        if self.type is str or text in self.words:
            return text
        try:
            return self.type(text)
        except ValueError:
            return text

    def admits(self, value: object) -> bool:
        if isinstance(value, str):
            return self._admits_text(value)
        if isinstance(value, bool) or self.type is bool:
            return self.type is bool and isinstance(value, bool)
        kinds = (int,) if self.type is int else (int, float)
        return self.type is not str and isinstance(value, kinds) and self.low <= float(value) <= self.high

    def _admits_text(self, value: str) -> bool:
        if value in self.words:
            return True
        if self.type is not str or self.words:
            return False
        return bool(re.fullmatch(self.pattern, value)) if self.pattern else "\n" not in value


class Setting(NamedTuple):
    """One field of a configuration, with its names in the file, the environment and the flags."""

    section: str
    name: str
    default: object
    allowed: Allowed
    help: str

    @property
    def key(self) -> str:
        """Name in the configuration file: `section.field`, or the field alone if it has no section."""
        return f"{self.section}.{self.name}" if self.section else self.name

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return "WAGER_" + self.name.upper()

    def check(self, value: object) -> None:
        if not self.allowed.admits(value):
            raise ConfigError(self.name, value, self.allowed)


def _field(default: Any, allowed: Allowed, help: str) -> Any:
    return field(default=default, metadata={"allowed": allowed, "help": help})


def _whole(low: int, high: float = math.inf) -> Allowed:
    return Allowed(int, low, high)


def _number(low: float, high: float) -> Allowed:
    return Allowed(float, low, high)


def _one_of(*words: str) -> Allowed:
    return Allowed(str, words=words)


_FLAG = Allowed(bool)


def _own_setting(section: str, one: Field[Any]) -> Setting:
    return Setting(section, one.name, one.default, one.metadata["allowed"], one.metadata["help"])


def settings_of(root: type[Any]) -> list[Setting]:
    """Returns every field of a configuration, including those of its sections, in the order of the file."""
    found = []
    for one in fields(root):
        if "allowed" in one.metadata:
            found.append(_own_setting("", one))
        else:
            section = one.default_factory
            assert isinstance(section, type) and is_dataclass(section)
            found += [_own_setting(one.name, inner) for inner in fields(section)]
    return found


def _check_fields(config: Any) -> None:
    """Checks every field of a section, and converts whole numbers to floats where a float is expected."""
    for one in fields(config):
        if "allowed" not in one.metadata:
            continue
        value = getattr(config, one.name)
        _own_setting("", one).check(value)
        if one.metadata["allowed"].type is float and not isinstance(value, str):
            object.__setattr__(config, one.name, float(value))


@dataclass(frozen=True)
class ModelConfig:
    """The models, and the device and number formats they run with."""

    model: str = _field(
        DEMO,
        Allowed(str, says="demo, a folder or a published name"),
        "Target model: a folder or a published name; demo is the pair that ships with Wager.",
    )
    drafter: str = _field(
        "auto",
        Allowed(str, pattern=r"\S(.*\S)?", says="auto, none, lookup, a folder or a published name"),
        "Drafter: auto takes the published drafter of the target if it is available, else lookup.",
    )
    dtype: str = _field(
        "auto",
        _one_of("auto", "float32", "float64", "bfloat16", "float16"),
        "Number format of weights and cache; auto: the format of the model.",
    )
    device: str = _field(
        "auto",
        Allowed(str, pattern=r"auto|cpu|cuda(:\d+)?", says="auto, cpu, cuda or cuda:N"),
        "Device; auto: a CUDA device if there is one, else the CPU.",
    )
    layout: str = _field(
        "auto",
        _one_of("auto", "out_in", "in_out", "packed"),
        "Memory layout of weights; auto: the fastest, measured at load. A named layout selects plain torch.",
    )
    native: str = _field(
        "auto",
        _one_of("auto", "on", "off"),
        "Use compiled passes on a CPU in float32, as soon as they have been built in the background; "
        "on: with a warning if that is impossible.",
    )
    kernels: str = _field(
        "auto",
        _one_of("auto", "eager", "off"),
        "Use Triton kernels on a CUDA device; auto: in graphs captured at the start, eager: without graphs, "
        "off: plain torch.",
    )
    weights: str = _field(
        "auto",
        _one_of("auto", "full", "int8", "int4"),
        "Storage format of weights; auto: as published, full: in dtype, "
        "int8: 8 bits with a scale per group of inputs, int4: 4 bits, on a CUDA device.",
    )
    activations: str = _field(
        "auto",
        _one_of("auto", "full", "int16", "int8"),
        "Rounding of what native passes multiply with quantised weights, per group of inputs; full: none, "
        "auto: int16 for published weights, int8 for weights that are rounded to int8.",
    )

    def __post_init__(self) -> None:
        _check_fields(self)


@dataclass(frozen=True)
class CacheConfig:
    """Size and use of the pages that hold keys and values."""

    page_size: int = _field(0, _whole(0, 1024), "Positions per page; 0: 64 on a CUDA device, else 32.")
    memory_gib: float | str = _field(
        "auto",
        Allowed(float, 0.001, 1e6, ("auto",)),
        "Memory for pages, in GiB; auto: determined from the free memory of the device.",
    )
    num_pages: int = _field(0, _whole(0), "Number of pages; 0: as many as fit into the memory.")
    prefix_reuse: bool = _field(
        True, _FLAG, "Keep pages of finished requests for later prompts with the same prefix."
    )
    memory_threshold: float = _field(
        0.9, _number(0.1, 1.0), "Share of the pages in use above which no new request starts."
    )

    def __post_init__(self) -> None:
        _check_fields(self)


@dataclass(frozen=True)
class SchedulerConfig:
    """The order in which requests run, and the limits of one pass."""

    order: str = _field(
        "fcfs", _one_of("fcfs", "shortest", "priority", "fair"), "Order in which waiting requests start."
    )
    max_rows: int = _field(32, _whole(1, 4096), "Largest number of requests that run at the same time.")
    max_step_tokens: int = _field(
        2048,
        _whole(1, 1_000_000),
        "Largest number of prompt and pending tokens in one pass; guesses are not counted.",
    )
    prefill_chunk: int = _field(
        512,
        _whole(1, 1_000_000),
        "Largest number of prompt tokens of one request in a pass, within max_step_tokens.",
    )
    max_context: int = _field(
        0, _whole(0), "Largest number of prompt and output tokens together; 0: the limit of the model."
    )

    def __post_init__(self) -> None:
        _check_fields(self)


class PolicyParts(NamedTuple):
    """The parts of a policy name: `ema+bod:tree` has the gate `ema`, the kind `bod`, the argument `tree`."""

    gates: tuple[str, ...]
    kind: str
    argument: str


def split_policy(name: str) -> PolicyParts:
    """Splits a policy name into its gates, its kind and its argument."""
    *gates, rest = name.split("+")
    kind, _, argument = rest.partition(":")
    return PolicyParts(tuple(gates), kind, argument)


@dataclass(frozen=True)
class PolicyConfig:
    """The speculation policy and its limits. `wager.policy.names` checks the policy names."""

    policy: str = _field(
        "auto",
        Allowed(
            str, pattern=r"[a-z]+(\+[a-z]+)*(:[a-z0-9]+)?", says="auto, ar, fixed:K, tree:B, bod or bod:tree"
        ),
        "Policy that decides the number of guesses; ema+NAME and entropy+NAME put a gate in front of it.",
    )
    ledger_floor: float = _field(
        0.01,
        _number(0.0, 1.0),
        "Largest accepted loss against plain decoding, as a fraction of the time spent.",
    )
    max_nodes: int = _field(64, _whole(1, 1024), "Most guesses for one request in a step (auto).")
    max_batch_nodes: int = _field(512, _whole(1, 4096), "Most guesses for all requests in a step (auto).")
    row_floor: int = _field(
        1, _whole(0, 1024), "Smallest number of guesses that a drafted request keeps in a batch (auto)."
    )
    calibrate: bool = _field(
        True,
        _FLAG,
        "Measure the time of passes once: on a CUDA device at the start, on a CPU while a server is idle.",
    )
    bod_min_bet: int = _field(0, _whole(0, 1024), "Smallest bet of bod; 0: the default of its mode.")
    bod_max_bet: int = _field(0, _whole(0, 1024), "Largest bet of bod; 0: the default of its mode.")
    bod_default_scale_cost: float = _field(
        8.0, _number(0.0, 1e6), "Milliseconds per guess that bod assumes before it has measured."
    )
    bod_default_fixed_cost: float = _field(
        47.0, _number(0.0, 1e6), "Milliseconds per step that bod assumes before it has measured."
    )
    ema_margin: float = _field(
        1.0,
        _number(0.0, 100.0),
        "Speed against plain decoding below which the ema gate counts a step as lost.",
    )
    ema_patience: int = _field(3, _whole(1, 1000), "Consecutive lost steps that close the ema gate.")
    entropy_unsure: float = _field(
        0.45, _number(0.0, 1.0), "Confidence of the target below which the entropy gate closes at once."
    )
    entropy_sagging: float = _field(
        0.90, _number(0.0, 1.0), "Average confidence below which the entropy gate counts a step."
    )
    entropy_patience: int = _field(
        2, _whole(1, 1000), "Number of consecutive counted steps that close the entropy gate."
    )
    lookup_min: int = _field(2, _whole(1, 64), "Smallest number of matching tokens for which lookup guesses.")
    lookup_max: int = _field(16, _whole(1, 64), "Largest number of tokens that lookup tries to match.")

    @property
    def parts(self) -> PolicyParts:
        return split_policy(self.policy)

    def __post_init__(self) -> None:
        _check_fields(self)
        if self.bod_max_bet and self.bod_min_bet > self.bod_max_bet:
            raise ConfigError("bod_min_bet", self.bod_min_bet, f"at most bod_max_bet ({self.bod_max_bet})")
        if self.lookup_min > self.lookup_max:
            raise ConfigError("lookup_min", self.lookup_min, f"at most lookup_max ({self.lookup_max})")


@dataclass(frozen=True)
class EngineConfig:
    """All settings of an engine."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    threads: int = _field(0, _whole(0, 4096), "Number of CPU threads; 0: chosen for this machine.")

    def __post_init__(self) -> None:
        _check_fields(self)


def with_values(config: C, **values: object) -> C:
    """Returns a copy with these fields changed; fields are named without their section.

    Raises ConfigError on an unknown name.
    """
    by_section: dict[str, dict[str, object]] = {}
    known = {setting.name: setting for setting in settings_of(type(config))}
    for name, value in values.items():
        if name not in known:
            raise unknown_key(name, list(known))
        by_section.setdefault(known[name].section, {})[name] = value
    own = by_section.pop("", {})
    inner = {name: replace(getattr(config, name), **changed) for name, changed in by_section.items()}
    changed_copy: C = replace(config, **inner, **own)  # type: ignore[type-var]
    return changed_copy


def unknown_key(name: str, known: list[str], where: str = "setting") -> ConfigError:
    """Returns the error for an unknown name, with the replacement of a removed field or the most similar
    name.
    """
    replacement = REMOVED_FIELDS.get(name.rpartition(".")[2].removeprefix("WAGER_").lower())
    if replacement:
        return ConfigError(where, name, f"a known name; this one was replaced by {replacement}")
    near = get_close_matches(name, known, n=1)
    return ConfigError(where, name, f"a known name; did you mean {near[0]}?" if near else "a known name")
