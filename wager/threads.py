"""How many threads CPU passes use.

The number is that of the physical cores which this process may use, within the CPU quota of its control
group. This module knows no torch; the engine and `wager doctor` ask for the number.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
_CORES = Path("/sys/devices/system/cpu")


class Threads(NamedTuple):
    """A number of threads, and where it came from."""

    number: int
    source: str


def choose_threads(asked: int = 0) -> Threads:
    """Returns the number that was asked for; 0: OMP_NUM_THREADS, otherwise what suits this machine."""
    if asked:
        return Threads(asked, "config")
    named = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if named.isdecimal() and int(named):
        return Threads(int(named), "OMP_NUM_THREADS")
    cpus = usable_cpus()
    cores, quota = len({_siblings(cpu) for cpu in cpus}), cpu_quota()
    if quota is not None and quota < cores:
        return Threads(max(1, int(quota)), f"the CPU quota of {quota:.10g} cores")
    if cores < len(cpus):
        return Threads(cores, f"the physical cores of {len(cpus)} logical ones")
    return Threads(cores, "the cores that this process may use")


def usable_cpus() -> list[int]:
    """Returns the logical cores on which this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cpu_quota() -> float | None:
    """Returns the smallest quota of this process's control groups in cores; None if there is none."""
    try:
        lines = _PROC.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    quotas = [quota for line in lines if line.count(":") >= 2 for quota in _quotas(*line.split(":", 2)[1:])]
    return min(quotas, default=None)


def _quotas(controllers: str, group: str) -> list[float]:
    """Returns the quotas of a group and its parents; version 2 of control groups names no controller."""
    if controllers and "cpu" not in controllers.split(","):
        return []
    root = _GROUPS / controllers
    found = []
    # In a container the group may have another name, but the root is its own.
    path = root / group.strip("/")
    for folder in (path, *path.parents):
        quota = _quota(folder)
        if quota is not None:
            found.append(quota)
        if folder == root:
            break
    return found


def _quota(folder: Path) -> float | None:
    """Returns the quota of one group in cores."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text(encoding="utf-8").split()[:2]
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text(encoding="utf-8")
            period = (folder / "cpu.cfs_period_us").read_text(encoding="utf-8")
        cores = int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # "max" is no number
        return None
    return cores if cores > 0 else None  # -1: no limit


def _siblings(cpu: int) -> str:
    """Returns the logical cores that share a physical core with this one, as the system writes them."""
    path = _CORES / f"cpu{cpu}" / "topology" / "thread_siblings_list"
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return str(cpu)
