"""Wager: an adaptive speculative-decoding runtime.

This file holds the public names. They are resolved on first use, so that `import wager` imports neither torch
nor numpy and the command line starts at once. To read the code, begin with
docs/architecture.md.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wager.config import EngineConfig
    from wager.errors import CapacityError, ConfigError, ModelError, RequestError, WagerError
    from wager.llm import LLM, AsyncLLM, Output, Stats, StreamEvent
    from wager.policy.bod import BODConfig, BODController, BODObservation, bod_optimal_bet
    from wager.records import (
        CloseReport,
        GrammarSpec,
        SamplingParams,
        ThinkingLimit,
        TokenDetail,
        TopLogprobs,
    )
    from wager.stats import ExponentialMovingAverage, SpeculationStats

    __version__: str

__all__ = [
    "LLM",
    "AsyncLLM",
    "BODConfig",
    "BODController",
    "BODObservation",
    "CapacityError",
    "CloseReport",
    "ConfigError",
    "EngineConfig",
    "ExponentialMovingAverage",
    "GrammarSpec",
    "ModelError",
    "Output",
    "RequestError",
    "SamplingParams",
    "SpeculationStats",
    "Stats",
    "StreamEvent",
    "ThinkingLimit",
    "TokenDetail",
    "TopLogprobs",
    "WagerError",
    "__version__",
    "bod_optimal_bet",
]

# Threads of plain torch sleep after some 20 microseconds of waiting. By default they look for work 300,000
# times, and keep a core from the thread that they wait for if another program has suspended that one. OpenMP
# reads this when torch is imported.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

_HOMES = {
    "AsyncLLM": "wager.llm",
    "BODConfig": "wager.policy.bod",
    "BODController": "wager.policy.bod",
    "BODObservation": "wager.policy.bod",
    "CapacityError": "wager.errors",
    "CloseReport": "wager.records",
    "ConfigError": "wager.errors",
    "EngineConfig": "wager.config",
    "ExponentialMovingAverage": "wager.stats",
    "GrammarSpec": "wager.records",
    "LLM": "wager.llm",
    "ModelError": "wager.errors",
    "Output": "wager.llm",
    "RequestError": "wager.errors",
    "SamplingParams": "wager.records",
    "SpeculationStats": "wager.stats",
    "Stats": "wager.llm",
    "StreamEvent": "wager.llm",
    "ThinkingLimit": "wager.records",
    "TokenDetail": "wager.records",
    "TopLogprobs": "wager.records",
    "WagerError": "wager.errors",
    "bod_optimal_bet": "wager.policy.bod",
}


def _installed_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("wager")
    except PackageNotFoundError:
        return "0.0.0+uninstalled"


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = _installed_version()
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'wager' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
