"""The public names: exactly these, each resolving to what its module defines."""

import pytest

import wager

PUBLIC = [
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
    "LLM",
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


def test_exactly_these_names_are_listed() -> None:
    """Sorted here; in the package the linter has an order of its own, capitals first."""
    assert sorted(wager.__all__) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_name_resolves(name: str) -> None:
    value = getattr(wager, name)
    assert name == "__version__" or value.__name__ == name


def test_dir_shows_names_not_yet_resolved() -> None:
    assert set(PUBLIC) <= set(dir(wager))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = wager.no_such_name
