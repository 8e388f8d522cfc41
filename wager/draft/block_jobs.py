"""The rows of one block draft, as the host and the device look at them. Used by the block_*.py files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wager.draft.base import DraftRow


class Job(NamedTuple):
    """One row that gets a block."""

    place: int
    """Its index among the rows that were asked for."""
    row: DraftRow
    context_len: int
    """The number of its tokens that are in the target's cache."""
    pending: tuple[int, ...]
    """The tokens behind those."""
    length: int
    """The length of its block on a path without kernels."""
    depth: int
    """The number of guesses that are read from its block."""


class DeviceJob(NamedTuple):
    """One row that gets a block on the device."""

    row: DraftRow
    context_len: int
    pending: tuple[int, ...] = ()
    """The pending tokens; empty if only the device knows them."""


def device_jobs(jobs: Sequence[Job]) -> list[DeviceJob]:
    """Returns the same rows as the device's passes take them."""
    return [DeviceJob(job.row, job.context_len, job.pending) for job in jobs]
