"""Flags from fields, and the page of documentation from the same."""

import inspect
from dataclasses import fields
from pathlib import Path

import pytest

from wager.cli import main
from wager.cli.config_docs import config_page
from wager.cli.flags import (
    config_flags,
    given_values,
    resolve_config,
    sampling_flags,
    sampling_params,
    source_flags,
    with_flags,
)
from wager.config import EngineConfig, settings_of
from wager.errors import ConfigError, RequestError
from wager.records import SamplingParams

ROOT = Path(__file__).resolve().parents[2]


def test_every_field_is_a_flag_with_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.exit_status(["generate", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for setting in settings_of(EngineConfig):
        assert f"{setting.flag} " in shown
    for one in fields(SamplingParams):
        assert (f"--{one.name.replace('_', '-')} " in shown) == one.metadata["flag"]
    four = "bod-min-bet bod-max-bet bod-default-scale-cost bod-default-fixed-cost"
    assert all(f"--{name} " in shown for name in four.split())
    assert "--prefix-reuse / --no-prefix-reuse" in shown


def test_no_two_flags_share_a_name() -> None:
    names = [one.name for one in [*source_flags(), *sampling_flags(), *config_flags(EngineConfig)]]
    assert len(names) == len(set(names))


def test_a_verbs_own_parameters_come_first() -> None:
    @with_flags(source_flags())
    def verb(*, quiet: bool = False, **values: object) -> None: ...

    assert list(inspect.signature(verb).parameters) == ["quiet", "profile", "config"]


def test_taken_leaves_out_what_was_not_given() -> None:
    values = {"stop": [], "top_k": None, "temperature": 0.0, "page_size": "3"}
    assert given_values(values, sampling_flags()) == {"temperature": 0.0}


def test_sampling_flags_make_sampling_params() -> None:
    values = {"max_tokens": 5, "stop": ["a", "b"], "logit_bias": ["3=-1.5", "4=2"], "ignore_eos": True}
    assert sampling_params(values) == SamplingParams(
        max_tokens=5, stop=("a", "b"), logit_bias={3: -1.5, 4: 2.0}, ignore_eos=True
    )
    assert sampling_params({}) == SamplingParams()


@pytest.mark.parametrize("text", ["3", "x=1", "3=", "=1", "3=x"])
def test_a_bad_bias_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="logit_bias"):
        sampling_params({"logit_bias": [text]})


def test_the_environment_and_a_file_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "wager.toml"
    file.write_text("threads = 3\n", encoding="utf-8")
    monkeypatch.setenv("WAGER_PAGE_SIZE", "8")
    found = resolve_config({"config": file, "profile": "latency", "max_rows": "2"}, EngineConfig, "here")
    config = found.config
    assert (config.threads, config.cache.page_size, config.scheduler.max_rows) == (3, 8, 2)
    assert (config.policy.max_nodes, config.model.model) == (128, "here")


def test_a_model_named_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="model"):
        resolve_config({"model": "one"}, EngineConfig, "two")
    assert resolve_config({"model": "one"}, EngineConfig, "one").config.model.model == "one"


def test_the_documentation_is_the_generated_page() -> None:
    page = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")
    assert page == config_page(), "run: python -m wager.cli.config_docs > docs/config.md"
    assert all(f"`{setting.variable}`" in page for setting in settings_of(EngineConfig))
