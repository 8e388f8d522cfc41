"""Every setting of the engine: frozen dataclasses, checked when made, each field with its help and range.

Flags, variables, the configuration file and docs/config.md are all generated from the fields here. It knows
neither torch nor what the values do; where a value came from is settled in resolve.py. Field names are unique
over all sections, so that a flag or a variable needs no section.
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
    "Allowed",
    "CacheConfig",
    "EngineConfig",
    "ModelConfig",
    "PolicyConfig",
    "PolicyParts",
    "SchedulerConfig",
    "Setting",
    "join_policy",
    "settings_of",
    "split_policy",
    "unknown_key",
    "with_values",
]

C = TypeVar("C")
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a field may hold: a type with its range, words beside it, or texts of a pattern."""

    type: type
    low: float = -math.inf
    high: float = math.inf
    words: tuple[str, ...] = ()
    pattern: str = ""
    says: str = ""
    """In words, where they cannot be made from the rest."""

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
        """The value a flag's or variable's text stands for; the text itself where it stands for none."""
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
    """One field of a configuration and all its names."""

    section: str
    name: str
    default: object
    allowed: Allowed
    help: str

    @property
    def key(self) -> str:
        """Its place: `section.field`, or the field alone where it has no section."""
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
    """Every field of a configuration, those of its sections included, in the order of the file."""
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
    """Check every field of a section, and turn whole numbers into floats where floats are meant."""
    for one in fields(config):
        if "allowed" not in one.metadata:
            continue
        value = getattr(config, one.name)
        _own_setting("", one).check(value)
        if one.metadata["allowed"].type is float and not isinstance(value, str):
            object.__setattr__(config, one.name, float(value))


@dataclass(frozen=True)
class ModelConfig:
    """What is run, and on what."""

    model: str = _field(
        DEMO,
        Allowed(str, says="demo, a folder or a published name"),
        "Target model: folder or name; demo is the pair that ships with Wager.",
    )
    drafter: str = _field(
        "auto",
        Allowed(str, pattern=r"\S(.*\S)?", says="auto, none, lookup, a folder or a published name"),
        "Who guesses: auto takes the target's published drafter where it is at hand, else lookup.",
    )
    dtype: str = _field(
        "auto",
        _one_of("auto", "float32", "float64", "bfloat16", "float16"),
        "Numbers of weights and cache; auto: the model's own.",
    )
    device: str = _field(
        "auto",
        Allowed(str, pattern=r"auto|cpu|cuda(:\d+)?", says="auto, cpu, cuda or cuda:N"),
        "Where it runs; auto: a CUDA device where there is one.",
    )
    layout: str = _field(
        "auto",
        _one_of("auto", "out_in", "in_out", "packed"),
        "How weights lie in memory; auto: timed at load. A layout asks for passes by plain torch.",
    )
    native: str = _field(
        "auto",
        _one_of("auto", "on", "off"),
        "Passes by compiled code, on a CPU in float32, once it has been built in the background; "
        "auto: for models of 50 million weights or more.",
    )
    kernels: str = _field(
        "auto",
        _one_of("auto", "eager", "off"),
        "Passes by kernels on a CUDA device; auto: captured as graphs at the start, eager: launch by launch, "
        "off: plain torch.",
    )
    weights: str = _field(
        "auto",
        _one_of("auto", "full", "int8", "int4"),
        "How weights are kept; auto: as narrow as they were published, full: as wide as dtype, "
        "int8: rounded to 8 bits, a scale for each group of inputs, int4: to 4 bits, on a CUDA device.",
    )

    def __post_init__(self) -> None:
        _check_fields(self)


@dataclass(frozen=True)
class CacheConfig:
    """The pages that hold keys and values."""

    page_size: int = _field(0, _whole(0, 1024), "Positions in a page; 0: 64 on a CUDA device, else 32.")
    memory_gib: float | str = _field(
        "auto",
        Allowed(float, 0.001, 1e6, ("auto",)),
        "Memory for pages, in GiB; auto: what the device can spare.",
    )
    num_pages: int = _field(0, _whole(0), "Pages; 0: as many as the memory holds.")
    prefix_reuse: bool = _field(True, _FLAG, "Keep pages of finished requests for prompts that begin alike.")
    memory_threshold: float = _field(
        0.9, _number(0.1, 1.0), "Share of the pages in use above which no new request starts."
    )

    def __post_init__(self) -> None:
        _check_fields(self)


@dataclass(frozen=True)
class SchedulerConfig:
    """Who runs when."""

    order: str = _field(
        "fcfs", _one_of("fcfs", "shortest", "priority", "fair"), "Who goes first among waiting requests."
    )
    max_rows: int = _field(32, _whole(1, 4096), "Requests that run at once.")
    max_step_tokens: int = _field(
        2048,
        _whole(1, 1_000_000),
        "Pending tokens in one pass, of prompts and of decoding rows; guesses come on top.",
    )
    prefill_chunk: int = _field(
        512, _whole(1, 1_000_000), "Most prompt tokens of one request in a pass, within max_step_tokens."
    )
    max_context: int = _field(0, _whole(0), "Longest prompt and output together; 0: the model's own limit.")

    def __post_init__(self) -> None:
        _check_fields(self)


class PolicyParts(NamedTuple):
    """A policy's name taken apart: `ema+bod:tree` has the gate ema, the kind bod and the argument tree."""

    gates: tuple[str, ...]
    kind: str
    argument: str


def split_policy(name: str) -> PolicyParts:
    *gates, rest = name.split("+")
    kind, _, argument = rest.partition(":")
    return PolicyParts(tuple(gates), kind, argument)


def join_policy(parts: PolicyParts) -> str:
    """The inverse of `split_policy`."""
    return "+".join([*parts.gates, f"{parts.kind}:{parts.argument}" if parts.argument else parts.kind])


@dataclass(frozen=True)
class PolicyConfig:
    """How much is bet. Names of policies are checked where they are made, in wager.policy.names."""

    policy: str = _field(
        "auto",
        Allowed(
            str, pattern=r"[a-z]+(\+[a-z]+)*(:[a-z0-9]+)?", says="auto, ar, fixed:K, tree:B, bod or bod:tree"
        ),
        "The rule that sizes bets; ema+NAME and entropy+NAME put a gate in front of it.",
    )
    ledger_floor: float = _field(
        0.01, _number(0.0, 1.0), "How far the ledger may fall, as a part of the time spent."
    )
    max_nodes: int = _field(64, _whole(1, 1024), "Most guesses for one request in a step (auto).")
    max_batch_nodes: int = _field(512, _whole(1, 4096), "Most guesses for all requests in a step (auto).")
    row_floor: int = _field(1, _whole(0, 1024), "Places a drafted request keeps in a shared pass (auto).")
    calibrate: bool = _field(
        True,
        _FLAG,
        "Time passes before they are bet on, once: on a CUDA device at the start, on a CPU while a server "
        "is idle.",
    )
    bod_enabled: bool = _field(False, _FLAG, "The same as --policy bod.")
    bod_mode: str = _field(
        "chain", _one_of("chain", "tree"), "What bod bets on; a chain's bet counts its root."
    )
    bod_min_bet: int = _field(0, _whole(0, 1024), "Smallest bet of bod; 0: the mode's own.")
    bod_max_bet: int = _field(0, _whole(0, 1024), "Largest bet of bod; 0: the mode's own.")
    bod_default_scale_cost: float = _field(
        8.0, _number(0.0, 1e6), "Milliseconds per guess that bod assumes before it has measured."
    )
    bod_default_fixed_cost: float = _field(
        47.0, _number(0.0, 1e6), "Milliseconds per step that bod assumes before it has measured."
    )
    gate: str = _field("none", _one_of("none", "ema", "entropy"), "A gate in front of the policy.")
    ema_margin: float = _field(
        1.0,
        _number(0.0, 100.0),
        "Speed against plain decoding below which the ema gate counts a step as lost.",
    )
    ema_patience: int = _field(3, _whole(1, 1000), "Lost steps in a row that close the ema gate.")
    entropy_unsure: float = _field(
        0.45, _number(0.0, 1.0), "Confidence of the target that closes the entropy gate at once."
    )
    entropy_sagging: float = _field(
        0.90, _number(0.0, 1.0), "Average confidence below which the entropy gate counts a step."
    )
    entropy_patience: int = _field(2, _whole(1, 1000), "Counted steps in a row that close the entropy gate.")
    lookup_min: int = _field(2, _whole(1, 64), "Fewest tokens that must match for lookup to guess.")
    lookup_max: int = _field(16, _whole(1, 64), "Most tokens that lookup tries to match.")

    @property
    def parts(self) -> PolicyParts:
        """The policy that results, `bod_enabled`, `bod_mode` and `gate` applied."""
        gates, kind, argument = split_policy(self.policy)
        if self.gate != "none":
            gates = (self.gate, *gates)
        if self.bod_enabled:
            kind = "bod"
        if kind == "bod" and not argument and self.bod_mode == "tree":
            argument = "tree"
        return PolicyParts(gates, kind, argument)

    @property
    def policy_name(self) -> str:
        """The same as a name that wager.policy.names knows."""
        return join_policy(self.parts)

    def __post_init__(self) -> None:
        _check_fields(self)
        gates, kind, argument = split_policy(self.policy)
        if self.bod_enabled and kind not in ("auto", "bod"):
            raise ConfigError("policy", self.policy, "bod, since bod_enabled is set")
        if self.bod_mode == "tree" and kind == "bod" and argument == "chain":
            raise ConfigError("bod_mode", self.bod_mode, f"chain, as policy {self.policy} says")
        if gates and self.gate != "none":
            raise ConfigError("gate", self.gate, f"none, since policy {self.policy} has a gate of its own")
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
    threads: int = _field(0, _whole(0, 4096), "CPU threads; 0: chosen for this machine.")

    def __post_init__(self) -> None:
        _check_fields(self)


def with_values(config: C, **values: object) -> C:
    """A copy with these fields changed, named without their section. Raises ConfigError on an unknown one."""
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
    """The refusal of a name nobody knows, with the nearest that somebody does."""
    near = get_close_matches(name, known, n=1)
    return ConfigError(where, name, f"a known one; did you mean {near[0]}?" if near else "a known one")
