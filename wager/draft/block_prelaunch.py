"""The block drafter on a device: drafts that start before the engine asks for them.

The latest draft is remembered by what it is for (request, cached tokens, pending tokens). If `propose` asks
for rows that it serves, its result is used; otherwise a new draft is launched. Needs the CUDA kernels
(block_kernels.py); block.py makes one if the device has them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from wager.draft.base import DeviceDrafting, DraftRow, InFlightPass, Proposal, UnreadDraft, WarmDevice
from wager.draft.block_jobs import Job, device_jobs
from wager.draft.block_kernels import BlockKernels

if TYPE_CHECKING:
    from wager.draft.block import BlockDrafter

JobKey: TypeAlias = tuple[Hashable, int, tuple[int, ...]]
"""What a draft depends on: request, cached tokens, pending tokens. Temperature and seed are the request's."""


class BlockPrelaunch(DeviceDrafting):
    """Starts drafts of one block drafter."""

    def __init__(self, drafter: BlockDrafter, kernels: BlockKernels) -> None:
        self.kernels = kernels
        self.graphs = kernels.graphs
        self.max_rows, self.max_waiting = kernels.max_rows, kernels.max_waiting
        self._drafter = drafter
        self._started: dict[JobKey, int] = {}
        """The index of each block of the latest draft."""
        self._followed: dict[Hashable, int] = {}
        """The index of each block of the latest draft that followed a pass, by request."""

    def warm(self, target_features: Tensor | None) -> WarmDevice:
        self.kernels.target_features = target_features
        return WarmDevice(self.kernels.warm(), self.kernels.top, self._drafter.spec.block_size - 1)

    def fits(self, jobs: Sequence[Job]) -> bool:
        """Whether one pass of the device can serve all these jobs."""
        return self.kernels.fits(device_jobs(jobs))

    def start(self, rows: Sequence[DraftRow]) -> None:
        jobs = self._drafter.jobs(rows)
        if jobs and self.fits(jobs):
            self.launch(jobs)

    def begin_unread(self, rows: Sequence[DraftRow]) -> UnreadDraft | None:
        """Only if every row gets a block."""
        jobs = self._drafter.jobs(rows)
        if len(jobs) < len(rows) or not self.fits(jobs):
            return None
        blocks, length = self.launch(jobs), self._drafter.spec.block_size
        lines = [block * length + job.row.num_pending for job, block in zip(jobs, blocks, strict=True)]
        return UnreadDraft(self.kernels.top, lines, [job.depth for job in jobs])

    def propose(self, jobs: Sequence[Job]) -> list[Proposal]:
        """Waits for the draft of these jobs, which is launched now if it is not in flight. Precondition:
        `fits`.
        """
        blocks = self.launch(jobs)
        top, length, proposals = self.kernels.result(), self._drafter.spec.block_size, []
        for job, block in zip(jobs, blocks, strict=True):
            first = block * length + job.row.num_pending
            cut = slice(first, first + job.depth)
            proposals.append(Proposal(top.token_ids[cut], top.logprobs[cut]))
        return proposals

    @torch.inference_mode()
    def follow(self, verified: InFlightPass) -> Tensor | None:
        """Only if no features of these rows wait to be read in from before this pass."""
        if not all(self._drafter.is_up_to_date(row) for row, *_ in verified.rows):
            return None
        self._started = {}
        self._followed = {row.request_id: block for block, (row, *_) in enumerate(verified.rows)}
        return self.kernels.follow(verified)

    def confirm(self, request_id: Hashable, context_len: int, pending: int) -> None:
        self._drafter.context(request_id).watermark = context_len
        self._started[request_id, context_len, (pending,)] = self._followed[request_id]

    @torch.inference_mode()
    def launch(self, jobs: Sequence[Job]) -> list[int]:
        """Launches a draft unless the latest one serves all these jobs; returns the index of each block."""
        keys: list[JobKey] = [(job.row.request_id, job.context_len, job.pending) for job in jobs]
        blocks = [self._started.get(key, -1) for key in keys]
        if min(blocks) >= 0:
            return blocks
        self._started = {}
        self._drafter.read_in_context(jobs)
        self.kernels.launch(device_jobs(jobs))
        self._started = {key: index for index, key in enumerate(keys)}
        return list(range(len(jobs)))

    def forget(self, request_id: Hashable) -> None:
        """Drops what was started for this request: a later one may have the same id."""
        for key in [key for key in self._started if key[0] == request_id]:
            del self._started[key]
