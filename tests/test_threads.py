"""The number of threads on whole, limited and shared machines, from files of groups and cores."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from wager import threads
from wager.threads import Threads, choose_threads, cpu_quota


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight cores without siblings and without a control group."""
    monkeypatch.setattr(threads, "_PROC", tmp_path / "cgroup")
    monkeypatch.setattr(threads, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(threads, "_CORES", tmp_path / "cores")
    monkeypatch.setattr(threads, "usable_cpus", lambda: list(range(8)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_what_was_asked_for_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_threads().number == 8
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")
    assert choose_threads() == Threads(3, "OMP_NUM_THREADS")
    assert choose_threads(5) == Threads(5, "config")
    for nonsense in ("", "many", "0", "-2"):
        monkeypatch.setenv("OMP_NUM_THREADS", nonsense)
        assert choose_threads().number == 8


def test_siblings_are_one_core(machine: Path) -> None:
    for cpu in range(8):
        write(
            machine / "cores" / f"cpu{cpu}" / "topology" / "thread_siblings_list",
            f"{cpu % 4},{cpu % 4 + 4}\n",
        )
    assert choose_threads() == Threads(4, "the physical cores of 8 logical ones")


@pytest.mark.parametrize(
    ("limit", "number"), [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1), ("900000 100000", 8)]
)
def test_a_quota_of_version_2(machine: Path, limit: str, number: int) -> None:
    write(machine / "cgroup", "0::/user.slice/job\n")
    write(machine / "groups" / "user.slice" / "job" / "cpu.max", limit + "\n")
    assert choose_threads().number == number


def test_the_smallest_quota_of_all_parents_counts(machine: Path) -> None:
    write(machine / "cgroup", "0::/outer/inner\n")
    write(machine / "groups" / "outer" / "inner" / "cpu.max", "max 100000\n")
    write(machine / "groups" / "outer" / "cpu.max", "350000 100000\n")
    write(machine / "groups" / "cpu.max", "600000 100000\n")
    assert choose_threads() == Threads(3, "the CPU quota of 3.5 cores")


@pytest.mark.parametrize("controllers", ["cpu", "cpu,cpuacct"])
def test_a_quota_of_version_1(machine: Path, controllers: str) -> None:
    write(machine / "cgroup", f"5:memory:/box\n4:{controllers}:/box\n2:cpuset:/\n0::/\n")
    group = machine / "groups" / controllers / "box"
    write(group / "cpu.cfs_period_us", "100000\n")
    write(group / "cpu.cfs_quota_us", "-1\n")
    assert cpu_quota() is None and choose_threads().number == 8
    write(group / "cpu.cfs_quota_us", "400000\n")
    assert cpu_quota() == 4.0 and choose_threads().number == 4


def test_inside_a_container_the_root_is_its_own_group(machine: Path) -> None:
    write(machine / "cgroup", "4:cpu:/docker/0123\n")
    write(machine / "groups" / "cpu" / "cpu.cfs_period_us", "100000\n")
    write(machine / "groups" / "cpu" / "cpu.cfs_quota_us", "150000\n")
    assert choose_threads() == Threads(1, "the CPU quota of 1.5 cores")


@pytest.mark.parametrize("text", ["", "nonsense\n", "0::/a\n", "4:cpu:/../../..\n"])
def test_unreadable_groups_limit_nothing(machine: Path, text: str) -> None:
    write(machine / "cgroup", text)
    write(machine / "groups" / "a" / "cpu.max", "what?\n")
    assert choose_threads().number == 8


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
)
def test_waits_are_shortened_before_torch_is_there(given: dict[str, str], expected: str) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    script = "import sys, os, wager; print('torch' in sys.modules, os.environ.get('GOMP_SPINCOUNT'))"
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment | given, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", expected]
