"""Where a step's time goes: medians and shares that can be foretold, with and without a device's clock."""

from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from tests.bench.made_up import measured, report
from wager.bench.profile import Profiler, StepTimes, profile_of, streamed_bytes, timeline
from wager.bench.report import read_report, write_report
from wager.bench.table import show
from wager.engine.telemetry import STAGES, StepReport


def step(verify: float = 8.0, draft: float = 1.0, /, **device: float) -> StepTimes:
    """A step of verify, draft and a tenth of a millisecond for each of the other seven stages."""
    stage_ms = dict.fromkeys(STAGES, 0.1) | {"verify": verify, "draft": draft}
    return StepTimes(stage_ms, 3, device or None)


def heard(stage_ms: dict[str, float], num_tokens: int = 5, num_nodes: int = 4) -> StepReport:
    return StepReport(1, num_tokens, num_nodes, 1, 2, 3, stage_ms)


def test_medians_shares_and_the_gap_between_passes() -> None:
    found = profile_of([step(8.0), step(8.0), step(80.0)], pass_bytes=16_000_000)
    assert found.steps == 3 and found.tokens_per_step == 3.0
    assert found.stage_ms["verify"] == 8.0 and found.stage_ms["plan"] == 0.1
    assert found.step_ms == pytest.approx(9.7)
    assert sum(found.stage_share.values()) == pytest.approx(1.0)
    assert found.stage_share["verify"] == pytest.approx(96.0 / 101.1)
    assert found.gap_ms == pytest.approx(0.7)
    assert found.device_ms is None
    assert found.bandwidth_gb_s == pytest.approx(2.0)


def test_the_devices_own_clock_decides_where_there_is_one() -> None:
    found = profile_of([step(8.0, 1.0, verify=5.0, draft=2.0)] * 3, pass_bytes=10_000_000)
    assert found.device_ms == {"verify": 5.0, "draft": 2.0}
    assert found.gap_ms == pytest.approx(9.7 - 7.0)
    assert found.gap_share == pytest.approx(2.7 / 9.7)
    assert found.bandwidth_gb_s == pytest.approx(2.0)


def test_without_the_weights_size_there_is_no_bandwidth() -> None:
    assert profile_of([step()]).bandwidth_gb_s is None


class FakeClock:
    """Times of the step before, as the device's clock gives them."""

    def __init__(self) -> None:
        self.count = -1

    def reset(self) -> None:
        self.count = -1

    def turn(self) -> dict[str, float]:
        self.count += 1
        return {"verify": float(self.count)} if self.count else {}


@pytest.fixture
def profiler(monkeypatch: pytest.MonkeyPatch) -> Profiler:
    monkeypatch.setattr("wager.bench.profile.streamed_bytes", lambda _decoder: None)
    engine: Any = SimpleNamespace(runner=SimpleNamespace(decoder=None), drafters={})
    return Profiler(engine)


def test_steps_that_read_the_prompt_and_warm_up_are_left_out(profiler: Profiler) -> None:
    seen: list[StepReport] = []
    profiler.listener("auto", seen.append)(heard({"verify": 99.0}))
    profiler.forget("auto")
    hear = profiler.listener("auto", seen.append)
    hear(heard({"verify": 50.0}, num_tokens=20, num_nodes=0))
    hear(heard({"verify": 4.0}))
    found = profiler.profiles()
    assert set(found) == {"auto"}
    assert found["auto"].steps == 1 and found["auto"].step_ms == 4.0
    assert len(seen) == 3


def test_the_devices_times_are_those_of_the_step_before(profiler: Profiler) -> None:
    clock: Any = FakeClock()
    profiler._clock = clock
    for _ in range(2):  # two answers: the last step of an answer has no times
        hear = profiler.listener("auto", lambda _report: None)
        for verify_ms in (11.0, 12.0, 13.0):
            hear(heard({"verify": verify_ms}))
    found = profiler.profiles()["auto"]
    assert found.steps == 4
    assert found.device_ms == {"verify": 1.5}
    assert found.gap_ms == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("dtype", "reason", "weights", "layout", "width"),
    [
        ("torch.float32", "no compiler", "auto", "probe: out_in", 4),
        ("torch.bfloat16", "on cuda", "full", "", 2),
        ("torch.float32", "", "auto", "native avx2: bfloat16 weights", 2),
        ("torch.float32", "", "int8", "native avx2: int8 weights", 1),
        ("torch.float32", "no compiler", "int8", "", None),
    ],
)
def test_bytes_follow_from_the_shape_and_how_weights_are_kept(
    dtype: str, reason: str, weights: str, layout: str, width: int | None
) -> None:
    heads = SimpleNamespace(num_heads=4, num_kv_heads=2, head_dim=8)
    spec = SimpleNamespace(heads=heads, hidden_size=16, intermediate_size=24, num_layers=3, vocab_size=100)
    native_loader = SimpleNamespace(reason=reason, options=SimpleNamespace(weights=weights))
    decoder: Any = SimpleNamespace(
        spec=spec, native_loader=native_loader, dtype=dtype, layout=layout, streamed_bytes=None
    )
    matrices = 16 * 32 + 2 * 16 * 16 + 32 * 16 + 3 * 16 * 24
    expected = None if width is None else width * (3 * matrices + 1600)
    assert streamed_bytes(decoder) == expected
    decoder.streamed_bytes = 12
    assert streamed_bytes(decoder) == 12


def test_the_table_leaves_the_device_out_where_there_is_none() -> None:
    def shown(*profiles: Any) -> str:
        console = Console(file=StringIO(), width=120)
        console.print(timeline({f"p{i}": one for i, one in enumerate(profiles)}))
        assert isinstance(console.file, StringIO)
        return console.file.getvalue()

    plain = shown(profile_of([step()], 10**7))
    assert all(stage in plain for stage in STAGES)
    assert "host gap" in plain and "GB/s" in plain and "device" not in plain
    both = shown(profile_of([step()]), profile_of([step(5.0)]))
    assert "device" not in both and "GB/s" not in both
    assert "device: verify" in shown(profile_of([StepTimes(dict.fromkeys(STAGES, 1.0), 1, {"verify": 0.5})]))


def test_a_profile_is_the_same_after_a_file_and_is_shown_again(tmp_path: Path) -> None:
    found = measured()
    found.profiles = {"auto": profile_of([step(8.0, 1.0, verify=5.0)], 10**7), "ar": profile_of([step()])}
    write_report(report(found), tmp_path / "run.json")
    read = read_report(tmp_path / "run.json")
    assert read.measured == found
    console = Console(file=StringIO(), width=200)
    show(read, console)
    assert isinstance(console.file, StringIO)
    assert "device: verify" in console.file.getvalue()
