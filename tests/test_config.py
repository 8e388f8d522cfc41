"""Settings: what each field allows, what contradicts, and where values come from."""

from dataclasses import FrozenInstanceError, fields, is_dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wager.config import (
    Allowed,
    CacheConfig,
    EngineConfig,
    ModelConfig,
    PolicyConfig,
    SchedulerConfig,
    settings_of,
    split_policy,
    with_values,
)
from wager.errors import ConfigError, InputError
from wager.resolve import OTHER_VARIABLES, PROFILES, resolve

SETTINGS = {setting.name: setting for setting in settings_of(EngineConfig)}


def refused(call: object, *args: object, **kwargs: object) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        call(*args, **kwargs)  # type: ignore[operator]
    assert "\n" not in str(caught.value)
    return caught.value


# -- fields


def test_every_field_has_help_and_a_default_it_allows_itself() -> None:
    assert len(SETTINGS) == len(settings_of(EngineConfig)), "a field name occurs in two sections"
    for setting in SETTINGS.values():
        assert setting.help.endswith("."), setting.name
        setting.check(setting.default)


def test_sections_are_composed_and_frozen() -> None:
    config = EngineConfig()
    sections = [one.name for one in fields(config) if is_dataclass(getattr(config, one.name))]
    assert sections == ["model", "cache", "scheduler", "policy"]
    for section in (ModelConfig, CacheConfig, SchedulerConfig, PolicyConfig):
        assert section.__bases__ == (object,)
    with pytest.raises(FrozenInstanceError):
        config.cache.page_size = 1  # type: ignore[misc]


BAD = [
    ("page_size", -1),
    ("page_size", 1.5),
    ("page_size", True),
    ("page_size", "32"),
    ("memory_gib", 0.0),
    ("memory_gib", "much"),
    ("memory_gib", float("nan")),
    ("memory_gib", float("inf")),
    ("memory_threshold", 1.5),
    ("prefix_reuse", 1),
    ("order", "random"),
    ("max_rows", -1),
    ("device", "gpu"),
    ("device", "cuda:x"),
    ("drafter", ""),
    ("dtype", "int8"),
    ("model", None),
    ("model", 3),
    ("policy", "Auto"),
    ("policy", "two words"),
    ("ledger_floor", -0.1),
    ("threads", None),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_value_names_field_value_and_what_is_allowed(name: str, value: object) -> None:
    error = refused(with_values, EngineConfig(), **{name: value})
    assert error.field == name
    assert str(error).startswith(f"{name} = {value!r}: expected ")
    assert str(error).endswith(str(SETTINGS[name].allowed))


def test_whole_numbers_become_floats_where_floats_are_meant() -> None:
    cache = CacheConfig(memory_gib=2, memory_threshold=1)
    assert (cache.memory_gib, cache.memory_threshold) == (2.0, 1.0)
    assert isinstance(cache.memory_gib, float) and isinstance(cache.memory_threshold, float)


def test_with_values_changes_only_what_it_names() -> None:
    config = with_values(EngineConfig(), page_size=64, policy="ar", threads=3)
    assert (config.cache.page_size, config.policy.policy, config.threads) == (64, "ar", 3)
    assert config.scheduler == EngineConfig().scheduler
    assert EngineConfig().cache.page_size != 64
    assert with_values(config) == config


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    assert "did you mean page_size?" in str(refused(with_values, EngineConfig(), page_sise=3))
    assert "did you mean" not in str(refused(with_values, EngineConfig(), zzzz=3))


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=12), st.sampled_from(sorted(SETTINGS)))
def test_any_text_is_read_or_refused(text: str, name: str) -> None:
    allowed = SETTINGS[name].allowed
    value = allowed.read(text)
    if allowed.admits(value):
        assert isinstance(value, (allowed.type, str))
        assert allowed.read(str(value)) == value


@pytest.mark.parametrize(
    ("allowed", "words"),
    [
        (Allowed(int, 1, 9), "a whole number from 1 to 9"),
        (Allowed(float, 0.5), "a number from 0.5"),
        (Allowed(float, 0, 1_000_000, ("auto",)), "auto or a number from 0 to 1000000"),
        (Allowed(str, words=("a", "b", "c")), "a, b or c"),
        (Allowed(bool), "true or false"),
    ],
)
def test_what_is_allowed_is_said_in_words(allowed: Allowed, words: str) -> None:
    assert str(allowed) == words


# -- the policy's name


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("auto", ((), "auto", "")),
        ("fixed:3", ((), "fixed", "3")),
        ("ema+bod:tree", (("ema",), "bod", "tree")),
        ("ema+entropy+auto", (("ema", "entropy"), "auto", "")),
    ],
)
def test_a_policy_name_is_split_into_gates_kind_and_argument(name: str, parts: tuple[object, ...]) -> None:
    assert split_policy(name) == parts
    assert PolicyConfig(policy=name).parts == parts


@pytest.mark.parametrize(
    ("name", "replacement"),
    [
        ("bod_enabled", "policy = bod"),
        ("bod_mode", "policy = bod:tree"),
        ("gate", "policy = ema+NAME or policy = entropy+NAME"),
    ],
)
def test_a_removed_field_is_refused_with_its_replacement(name: str, replacement: str, tmp_path: Path) -> None:
    assert replacement in str(refused(with_values, EngineConfig(), **{name: "x"}))
    assert replacement in str(refused(resolve, env={f"WAGER_{name.upper()}": "x"}))
    assert replacement in str(refused(resolve, flags={name: "x"}))
    assert replacement in str(refused(resolve, write(tmp_path, f'[policy]\n{name} = "x"\n')))
    assert name not in SETTINGS


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"bod_min_bet": 9, "bod_max_bet": 4}, "bod_min_bet"),
        ({"lookup_min": 17}, "lookup_min"),
    ],
)
def test_values_that_contradict_each_other_are_refused(values: dict[str, object], field: str) -> None:
    assert refused(PolicyConfig, **values).field == field


# -- sources


def write(folder: Path, text: str) -> Path:
    path = folder / "wager.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_sources_outrank_each_other_and_are_named(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "threads = 2\n[cache]\npage_size = 8\nmemory_gib = 3\n"
        "[scheduler]\nmax_rows = 2\nprefill_chunk = 64\n",
    )
    env = {"WAGER_MAX_ROWS": "3", "WAGER_PREFILL_CHUNK": "65", "HOME": "elsewhere"}
    found = resolve(file, env, {"prefill_chunk": "66", "order": None}, "low-memory")
    config = found.config
    assert (config.cache.page_size, config.scheduler.max_rows, config.scheduler.prefill_chunk) == (8, 3, 66)
    assert (config.cache.memory_gib, config.threads, config.policy.max_nodes) == (3.0, 2, 16)
    assert found.sources["cache.page_size"] == f"file {file}"
    assert found.sources["scheduler.max_rows"] == "env WAGER_MAX_ROWS"
    assert found.sources["scheduler.prefill_chunk"] == "flag --prefill-chunk"
    assert found.sources["policy.max_nodes"] == "profile low-memory"
    assert found.sources["threads"] == f"file {file}"
    assert found.sources["scheduler.order"] == "default"
    assert set(found.sources) == {setting.key for setting in SETTINGS.values()}


def test_nothing_given_is_all_defaults() -> None:
    found = resolve()
    assert found.config == EngineConfig()
    assert set(found.sources.values()) == {"default"}


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_a_profile_sets_what_it_lists(name: str) -> None:
    found = resolve(profile=name)
    assert {
        row.setting.name: row.value for row in found.rows() if row.source == f"profile {name}"
    } == PROFILES[name]
    assert found.config != EngineConfig()


def test_a_profile_can_be_named_in_three_places(tmp_path: Path) -> None:
    file = write(tmp_path, 'profile = "latency"\n')
    assert resolve(file).config == resolve(profile="latency").config
    assert resolve(file, {"WAGER_PROFILE": "throughput"}).config == resolve(profile="throughput").config
    assert resolve(file, {"WAGER_PROFILE": "throughput"}, None, "low-memory").config.cache.memory_gib == 1.0
    assert "latency, throughput, low-memory, long-context" in str(refused(resolve, profile="fast"))
    assert refused(resolve, write(tmp_path, "profile = 3\n")).field == "profile"


def test_the_file_can_be_named_by_the_environment(tmp_path: Path) -> None:
    file = write(tmp_path, "threads = 2\n")
    assert resolve(env={"WAGER_CONFIG": str(file)}).config.threads == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[cache]\npage_sise = 3\n", "did you mean cache.page_size?"),
        ("page_size = 3\n", "did you mean cache.page_size?"),
        ("[cash]\npage_size = 3\n", "cash"),
        ("cache = 3\n", "'cache'"),
        ('[cache]\npage_size = "8"\n', "page_size = '8'"),
        ("[cache.page_size]\nx = 1\n", "page_size = {'x': 1}"),
        ("threads = [1]\n", "threads = [1]"),
    ],
)
def test_a_bad_file_is_refused(text: str, said: str, tmp_path: Path) -> None:
    assert said in str(refused(resolve, write(tmp_path, text)))


@pytest.mark.parametrize("content", [b"not toml at all", b"\xff\xfe", None])
def test_a_file_that_cannot_be_read_is_an_input_error(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "wager.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"config: .*wager\.toml"):
        resolve(path)


def test_an_unknown_variable_is_refused_and_others_are_left_alone() -> None:
    assert "did you mean WAGER_PAGE_SIZE?" in str(refused(resolve, env={"WAGER_PAGE_SISE": "3"}))
    assert resolve(env={"PATH": "x", "WAGERS": "3", "WAGER_LOG": "debug"}).config == EngineConfig()
    assert not OTHER_VARIABLES & {setting.variable for setting in SETTINGS.values()}


@pytest.mark.parametrize("text", ["yes", "TRUE", "1", "on"])
def test_a_switch_is_read_from_the_environment(text: str) -> None:
    assert resolve(env={"WAGER_PREFIX_REUSE": text}).config.cache.prefix_reuse is True
    assert resolve(env={"WAGER_PREFIX_REUSE": "off"}).config.cache.prefix_reuse is False
    refused(resolve, env={"WAGER_PREFIX_REUSE": "perhaps"})


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        ({"policy": "bod", "bod_min_bet": 9, "bod_max_bet": 4}, "bod_min_bet"),
        ({"bod_max_bet": 4}, "bod_max_bet"),
        ({"ema_margin": "1.2"}, "ema_margin"),
        ({"policy": "ema+auto", "entropy_unsure": "0.3"}, "entropy_unsure"),
    ],
)
def test_flags_that_contradict_or_do_nothing_are_refused(flags: dict[str, object], field: str) -> None:
    assert refused(resolve, flags=flags).field == field


@pytest.mark.parametrize(
    ("env", "flags", "name", "source"),
    [
        ({"WAGER_POLICY": "fixed:3"}, {"policy": "bod"}, "bod", "flag --policy"),
        ({"WAGER_POLICY": "bod:tree"}, {"bod_max_bet": "4"}, "bod:tree", "env WAGER_POLICY"),
        ({"WAGER_BOD_MAX_BET": "5"}, {}, "auto", "default"),
    ],
)
def test_between_sources_the_higher_one_wins(
    env: dict[str, str], flags: dict[str, object], name: str, source: str
) -> None:
    found = resolve(env=env, flags=flags)
    assert found.config.policy.policy == name
    assert found.sources["policy.policy"] == source


def test_a_choice_makes_a_new_object_with_its_reason() -> None:
    found = resolve()
    chosen = found.choose("device", "cpu", "auto: no CUDA device")
    assert found.config.model.device == "auto"
    assert chosen.value("device") == "cpu"
    assert chosen.sources["model.device"] == "auto: no CUDA device"
    refused(found.choose, "device", "moon", "why not")
