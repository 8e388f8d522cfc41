"""The device's own clock, on a made-up device: spans by stage, read a step later, marks used again."""

import itertools
from typing import Any

import pytest
import torch

from wager.engine.device_clock import DeviceClock
from wager.nn.kernels.capture import GraphCache


class Device:
    """A stream whose time passes when it is told to; what lies behind `done_ms` is still under way."""

    def __init__(self) -> None:
        self.now_ms, self.done_ms = 0.0, float("inf")
        self.num_events = 0

    def event(self) -> Any:
        self.num_events += 1
        return Mark(self)


class Mark:
    def __init__(self, device: Device) -> None:
        self.device, self.at_ms = device, -1.0

    def record(self) -> None:
        self.at_ms = self.device.now_ms

    def query(self) -> bool:
        return self.at_ms <= self.device.done_ms

    def elapsed_time(self, end_event: Any) -> float:
        return float(end_event.at_ms - self.at_ms)


@pytest.fixture
def device() -> Device:
    return Device()


def work(clock: DeviceClock, device: Device, stage: str, time_ms: float) -> None:
    clock.begin(stage)
    device.now_ms += time_ms
    clock.end(stage)
    device.now_ms += 0.5  # the host takes its time


def test_a_step_is_told_when_the_next_one_ends(device: Device) -> None:
    clock = DeviceClock(device.event)
    work(clock, device, "draft", 1.0)
    work(clock, device, "verify", 4.0)
    assert clock.turn() == {}
    work(clock, device, "verify", 5.0)
    work(clock, device, "verify", 2.0)
    assert clock.turn() == {"draft": 1.0, "verify": 4.0}
    assert clock.turn() == {"verify": 7.0}


def test_work_under_way_is_not_waited_for(device: Device) -> None:
    clock = DeviceClock(device.event)
    work(clock, device, "verify", 4.0)
    clock.turn()
    device.done_ms = 2.0
    assert clock.turn() is None
    assert clock.turn() == {}


def test_marks_are_used_again(device: Device) -> None:
    clock = DeviceClock(device.event)
    for _ in range(50):
        work(clock, device, "verify", 1.0)
        clock.turn()
    assert device.num_events <= 6


def test_a_reset_forgets_what_is_under_way(device: Device) -> None:
    clock = DeviceClock(device.event)
    work(clock, device, "verify", 4.0)
    clock.turn()
    clock.begin("draft")
    clock.reset()
    work(clock, device, "verify", 1.0)
    assert clock.turn() == {}
    assert clock.turn() == {"verify": 1.0}


def test_passes_that_are_watched_are_timed(device: Device) -> None:
    clock, passes, calls = DeviceClock(device.event), GraphCache(torch.device("cpu")), itertools.count(1)

    def call() -> None:
        device.now_ms += next(calls)

    clock.watch(passes, "verify")
    for size in (1, 2):
        passes.run(size, call)
    clock.turn()
    assert clock.turn() == {"verify": 3.0}
