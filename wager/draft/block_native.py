"""The block drafter within native steps: the library drafts, this file keeps its contexts."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from wager.draft.base import DraftRow, NativeDrafting
from wager.draft.scores import HostTop, Span
from wager.nn.native.head import NativeHead
from wager.nn.native.passes import NativeDFlash, StepBlock
from wager.nn.native.steps import BlockModel

if TYPE_CHECKING:
    from wager.draft.block import BlockDrafter


class BlockNative(NativeDrafting):
    """The block drafter with native passes."""

    def __init__(self, drafter: BlockDrafter, net: NativeDFlash, head: NativeHead) -> None:
        self._drafter, self._net, self._head = drafter, net, head

    def candidates(self, hidden: Tensor, spans: Sequence[Span], ranks: int) -> HostTop:
        """Returns the candidates behind these hidden states, as `to_host(best(noised(...)))` does.

        Native steps choose candidates with the same code.
        """
        scores = self._head(hidden.float())
        ranks = min(ranks, self._head.num_outputs)
        logprobs = np.empty((len(scores), ranks), np.float32)
        token_ids = np.empty((len(scores), ranks), np.int64)
        start = 0
        for span in spans:
            stop = start + span.num_rows
            cut = slice(start, stop)
            self._net.draw(scores[cut], self._head, span, logprobs[cut], token_ids[cut])
            start = stop
        return HostTop(logprobs, token_ids)

    def begin(self, rows: Sequence[DraftRow], max_len: int) -> BlockModel | None:
        drafter = self._drafter
        jobs = drafter.jobs(rows)
        shapes = {(job.length, job.depth) for job in jobs}
        if len(jobs) < len(rows) or len(shapes) != 1 or any(row.num_pending != 1 for row in rows):
            return None
        drafter.read_in_context(jobs)
        ((length, depth),) = shapes
        ranks = min(drafter.options.ranks, self._head.num_outputs)
        block = StepBlock(drafter.spec.mask_token_id, length, depth, ranks)
        return self._net.step_model(drafter.pool, self._head, block, max_len)

    def end(self, request_id: Hashable, num_read: int) -> None:
        self._drafter.context(request_id).skip_to(num_read)
