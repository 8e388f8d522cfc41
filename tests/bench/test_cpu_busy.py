"""The benchmark beside busy processes: they run only inside it, and its summary compares like with like."""

from pathlib import Path

import pytest

from bench.cpu.busy import BUSY, QUIET_CORES, Clock, Sample, hogs, summary


def test_busy_processes_end_with_their_block() -> None:
    with hogs(2) as pids:
        assert len(set(pids)) == 2
        assert all(Path(f"/proc/{pid}").exists() for pid in pids) or not Path("/proc").exists()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_busy_processes_end_with_an_error_too() -> None:
    with pytest.raises(KeyError), hogs(1) as pids:
        raise KeyError
    assert not Path(f"/proc/{pids[0]}").exists()


def test_the_work_of_others_is_never_negative() -> None:
    clock = Clock([])
    assert sum(range(100_000)) and clock.foreign_cores() >= 0.0 and clock.elapsed_s() > 0.0


def test_the_summary_has_medians_and_ratios() -> None:
    speeds = {("ar", 0): 100.0, ("ar", 1): 60.0, ("ar", 2): 40.0}
    speeds |= {("auto", 0): 150.0, ("auto", 1): 90.0, ("auto", 2): 39.0}
    samples = {
        key: [Sample(speed, 0.0), Sample(1.0, 0.0), Sample(10 * speed, QUIET_CORES + 0.1)]
        for key, speed in speeds.items()
    }
    found = summary(samples)
    assert list(found["ar"]) == [str(count) for count in BUSY]
    expected = {"tokens_per_s": 90.0, "of_idle": 0.6, "over_ar": 1.5, "disturbed": 1}
    assert found["auto"]["1"] == expected
    assert found["auto"]["2"]["over_ar"] == 0.975 and found["ar"]["2"]["of_idle"] == 0.4
