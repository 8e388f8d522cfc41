"""Settings reach the policies they are meant for, and stay when the policy is changed."""

import pytest

from wager.config import PolicyConfig
from wager.errors import ConfigError
from wager.policy import Controller, Experience, PolicySettings, check_policy, make_policy, settings_from
from wager.policy.auto import Auto, AutoConfig
from wager.policy.bod.policy import BodPolicy
from wager.policy.bod.settings import BodSettings
from wager.policy.gates import EmaGate, EntropyGate

CONFIG = PolicyConfig(
    max_nodes=7,
    max_batch_nodes=9,
    bod_min_bet=3,
    bod_max_bet=5,
    bod_default_scale_cost=1.0,
    bod_default_fixed_cost=2.0,
    ema_margin=1.5,
    ema_patience=4,
    entropy_unsure=0.3,
    entropy_sagging=0.8,
    entropy_patience=6,
)


def test_the_configurations_defaults_are_the_policies_own() -> None:
    assert settings_from(PolicyConfig()) == PolicySettings()
    for name in ("bod", "bod:tree"):
        told, bare = (
            make_policy(name, Experience(), PolicySettings()),
            BodPolicy(Experience(), name[4:] or "chain"),
        )
        assert isinstance(told, BodPolicy) and told.controller.config == bare.controller.config


def test_every_setting_reaches_its_policy() -> None:
    settings = settings_from(CONFIG)
    auto = make_policy("auto", Experience(), settings)
    assert isinstance(auto, Auto) and auto.config == AutoConfig(7, 9)
    bod = make_policy("bod:tree", Experience(), settings)
    assert isinstance(bod, BodPolicy)
    config = bod.controller.config
    assert (config.mode, config.min_bet, config.max_bet) == ("tree", 3, 5)
    assert (config.default_scale_cost, config.default_fixed_cost) == (1.0, 2.0)
    gate = make_policy("ema+entropy+auto", Experience(), settings)
    assert isinstance(gate, EmaGate) and (gate.margin, gate.patience) == (1.5, 4)
    inner = gate.inner
    assert isinstance(inner, EntropyGate)
    assert (inner.unsure, inner.sagging, inner.patience) == (0.3, 0.8, 6)
    assert isinstance(inner.inner, Auto) and inner.inner.config.max_nodes == 7


def test_a_changed_policy_keeps_the_settings() -> None:
    controller = Controller("auto", settings=settings_from(CONFIG))
    controller.set_policy("bod")
    assert isinstance(controller.policy, BodPolicy) and controller.policy.controller.config.max_bet == 5


@pytest.mark.parametrize(
    ("settings", "mode", "field"),
    [(BodSettings(min_bet=20), "chain", "bod_min_bet"), (BodSettings(max_bet=1), "chain", "bod_max_bet")],
)
def test_an_empty_range_of_bets_is_refused(settings: BodSettings, mode: str, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings.config(mode)
    assert caught.value.field == field


def test_a_name_can_be_checked_without_an_engine() -> None:
    assert check_policy("bod:chain") == "bod"
    with pytest.raises(ConfigError):
        check_policy("best")
    with pytest.raises(ConfigError):
        check_policy("bod", PolicySettings(bod=BodSettings(min_bet=20)))
