"""The public names: exactly these, each resolving to what its module defines."""

import pytest

import wager

PUBLIC = [
    "BODConfig",
    "BODController",
    "BODObservation",
    "EngineConfig",
    "ExponentialMovingAverage",
    "LLM",
    "SamplingParams",
    "SpeculationStats",
    "WagerError",
    "__version__",
    "bod_optimal_bet",
]


def test_the_list_is_literal_and_sorted() -> None:
    assert wager.__all__ == PUBLIC
    assert sorted(PUBLIC) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_name_resolves(name: str) -> None:
    value = getattr(wager, name)
    assert name == "__version__" or value.__name__ == name


def test_dir_shows_names_not_yet_resolved() -> None:
    assert set(PUBLIC) <= set(dir(wager))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = wager.no_such_name
