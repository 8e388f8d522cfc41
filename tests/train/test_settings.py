"""The settings of both courses: each has help, wrong ones are named, and some do not touch the weights."""

from dataclasses import fields
from typing import Any

import pytest

from tests.architecture.layout import ROOT
from wager.config import settings_of, with_values
from wager.errors import ConfigError
from wager.train.settings import ChatSettings, DrafterSettings, TargetSettings, lasting, read_taps


@pytest.mark.parametrize("kind", [ChatSettings, DrafterSettings, TargetSettings])
def test_every_setting_is_described_and_its_default_allowed(kind: type[Any]) -> None:
    for setting in settings_of(kind):
        assert setting.help.endswith(".") and setting.allowed.admits(setting.default), setting.name


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        (DrafterSettings, {"layers": 0}, "layers = 0"),
        (DrafterSettings, {"taps": "1,2"}, "taps = '1,2'"),
        (DrafterSettings, {"soft_share": 1.5}, "soft_share = 1.5"),
        (DrafterSettings, {"min_temperature": 0.9, "max_temperature": 0.6}, "at most max_temperature (0.6)"),
        (DrafterSettings, {"row_len": 17}, "row_len = 17: expected at least block_size + 2 (18)"),
        (DrafterSettings, {"device": "tpu"}, "device = 'tpu'"),
        (TargetSettings, {"heads": 4, "kv_heads": 3}, "kv_heads = 3: expected a divisor of heads (4)"),
        (TargetSettings, {"head_dim": 5}, "head_dim = 5: expected an even number"),
        (TargetSettings, {"row_len": 4096}, "at most max_position (2048)"),
        (TargetSettings, {"optimizer": "sgd"}, "optimizer = 'sgd'"),
    ],
)
def test_a_wrong_value_is_named(kind: type[Any], changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as found:
        kind(**changes)
    assert said in str(found.value)


def test_only_what_touches_the_weights_lasts() -> None:
    left_out = {one.name for one in fields(DrafterSettings)} - lasting(DrafterSettings()).keys()
    assert left_out == {
        "checkpoint_every",
        "device",
        "evaluate_every",
        "heldout_texts",
        "heldout_tokens",
        "report_every",
        "write_rows",
    }
    assert "updates" in lasting(TargetSettings()) and "device" not in lasting(TargetSettings())


def test_whole_numbers_become_floats_and_taps_layers() -> None:
    assert isinstance(with_values(DrafterSettings(), fade=7).fade, float)
    assert read_taps("auto") == () and read_taps("3") == (3,) and read_taps("1-9-17") == (1, 9, 17)


@pytest.mark.parametrize("kind", [ChatSettings, DrafterSettings, TargetSettings])
def test_the_page_lists_every_option_as_it_is(kind: type[Any]) -> None:
    page = (ROOT / "docs" / "train.md").read_text(encoding="utf-8")
    for setting in settings_of(kind):
        is_switch = setting.allowed.type is bool
        flags = f"`{setting.flag}`" + (f", `--no-{setting.flag[2:]}`" if is_switch else "")
        default = {True: "on", False: "off"}[bool(setting.default)] if is_switch else setting.default
        assert f"| {flags} | {default} | {setting.help} |" in page
