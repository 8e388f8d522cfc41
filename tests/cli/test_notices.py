"""What is said about native passes: why there are none, where that matters to the user."""

from types import SimpleNamespace
from typing import Any

import pytest

from wager.cli.notices import announce_native


def engine(reason: str, **loader: bool) -> Any:
    states = {"is_refused": False, "may_become_ready": False, "is_large": False, **loader}
    network = SimpleNamespace(native_loader=SimpleNamespace(reason=reason, **states))
    return SimpleNamespace(runner=SimpleNamespace(decoder=network))


@pytest.mark.parametrize(
    ("asked", "loader", "said"),
    [
        ("auto", {}, "no native passes, which are faster: no compiler"),
        ("on", {}, ""),
        ("off", {}, ""),
        ("auto", {"is_refused": True}, ""),
        ("on", {"is_refused": True}, ""),
        ("auto", {"may_become_ready": True}, ""),
        ("on", {"may_become_ready": True}, "plain torch until the native passes are ready: no compiler"),
        ("on", {"is_large": True}, "plain torch until the native passes are ready: no compiler"),
    ],
)
def test_a_reason_is_given_where_it_matters(
    asked: str, loader: dict[str, bool], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    announce_native(asked, engine("no compiler", **loader))
    assert capsys.readouterr().err == (f"wager: {said}\n" if said else "")


@pytest.mark.parametrize("asked", ["auto", "on"])
def test_nothing_is_said_about_native_passes(asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    announce_native(asked, engine(""))
    assert not capsys.readouterr().err
