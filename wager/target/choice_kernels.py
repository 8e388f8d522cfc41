"""The target's choices on a CUDA device: all judged positions of a step in two launches and one copy back.

Rows whose scores need no processing are chosen here, greedy or sampled, filters included. The sampler
processes and chooses the others one by one. Made by sampler.py for scores on such a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wager.nn.kernels.filter import ActiveFilters, SamplingRows
from wager.nn.kernels.sample import SampledTokens, sample_tokens
from wager.nn.kernels.staging import StagingBuffer, signed_seed
from wager.records import SamplingParams
from wager.target.sampler import ChoiceRow
from wager.tree import Tree

_SEED, _POSITION, _TEMPERATURE, _TOP_P, _MIN_P, _TOP_K = range(6)


class DeviceChooser:
    """Chooses for scores on one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._count = 0
        """Judged positions of the latest launch."""
        self._make_room(512)

    def _make_room(self, size: int) -> None:
        """Allocate for so many judged positions; tokens and scores are adjacent, so one copy reads both."""
        is_cuda = self._device.type == "cuda"
        self._size, self._numbers = size, StagingBuffer(6, size, self._device)
        self._is_greedy = True
        """Whether every temperature on the device is 0, as at the start."""
        self._found = torch.zeros(12 * size, dtype=torch.uint8, device=self._device)
        self._host = torch.zeros(12 * size, dtype=torch.uint8, pin_memory=is_cuda)
        self._done = torch.cuda.Event() if is_cuda else None
        both = self._host.numpy()
        self._tokens, self._highest = both[: 8 * size].view(np.int64), both[8 * size :].view(np.float32)

    @torch.inference_mode()
    def launch(self, logits: Tensor, rows: Sequence[ChoiceRow]) -> Tensor:
        """Launch the choices; returns the chosen tokens on the device."""
        count = self._count = logits.shape[0]
        if count > self._size:
            self._make_room(2 * count)
        filters = self._fill(rows, logits.shape[1])
        numbers, size = self._numbers, self._size
        asked = SamplingRows(
            numbers.floats(_TEMPERATURE, count),
            numbers.device[_TOP_K].view(torch.int32)[:count],
            numbers.floats(_TOP_P, count),
            numbers.floats(_MIN_P, count),
            numbers.device[_SEED, :count],
            numbers.device[_POSITION, :count],
        )
        tokens = self._found[: 8 * size].view(torch.int64)[:count]
        sample_tokens(
            logits, asked, filters, SampledTokens(tokens, self._found[8 * size :].view(torch.float32)[:count])
        )
        self._host.copy_(self._found, non_blocking=True)
        if self._done is not None:
            self._done.record()
        return tokens

    @property
    def is_done(self) -> bool:
        """Whether the device is done with the latest launch; False where this is not known."""
        return self._done is not None and self._done.query()

    def read(self) -> tuple[list[int], npt.NDArray[np.float32]]:
        """The chosen token and the highest plain score at every judged position of the latest launch."""
        if self._done is not None:
            self._done.synchronize()
        return self._tokens[: self._count].tolist(), self._highest[: self._count]

    def warm(self, logits: Tensor) -> None:
        """Choose with every set of filters once, because each is compiled separately; logits [1, vocab]."""
        for top_k, top_p, min_p in product((0, 1), (1.0, 0.5), (0.0, 0.5)):
            params = SamplingParams(temperature=1.0, top_k=top_k, top_p=top_p, min_p=min_p)
            self.launch(logits, [ChoiceRow(params, 0, (0,), 1, Tree.chain([]))])
            self.read()

    def _make_greedy(self) -> None:
        """Set every temperature to 0 unless it is so already; nothing else is read for greedy positions."""
        if not self._is_greedy:
            self._numbers.wait()
            self._numbers.host_floats(_TEMPERATURE)[:] = 0.0
            self._numbers.push()
            self._is_greedy = True

    def _fill(self, rows: Sequence[ChoiceRow], vocab_size: int) -> ActiveFilters | None:
        if all(row.bare for row in rows):
            self._make_greedy()
            return None
        numbers, start, self._is_greedy = self._numbers, 0, False
        numbers.wait()
        host = numbers.host
        temperature, top_p, min_p = (numbers.host_floats(line) for line in (_TEMPERATURE, _TOP_P, _MIN_P))
        top_k = host[_TOP_K].view(np.int32)
        by_k = by_p = by_min = False
        for row in rows:
            stop = start + row.tree.num_nodes + 1
            own, params = slice(start, stop), row.params
            start = stop
            if row.is_plain or row.has_processing:
                temperature[own] = 0.0
                continue
            temperature[own], top_p[own], min_p[own] = params.temperature, params.top_p, params.min_p
            top_k[own] = params.top_k if 0 < params.top_k < vocab_size else 0
            host[_SEED, own] = signed_seed(row.seed)
            root = len(row.tokens)
            host[_POSITION, own.start] = root
            host[_POSITION, own.start + 1 : stop] = root + row.tree.depths
            by_k = by_k or bool(top_k[own.start])
            by_p, by_min = by_p or params.top_p < 1.0, by_min or params.min_p > 0.0
        numbers.push()
        return ActiveFilters(by_k, by_p, by_min) if by_k or by_p or by_min else None
