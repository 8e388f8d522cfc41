"""Several decoding steps of a few rows in one native call: draft, choose nodes, verify, accept, commit.

The records mirror source/steps.h field by field. The library takes the steps with the kernels of single
passes, so the text is the same. This module knows no requests and no policy; engine/multi_step.py decides
when several steps can be taken at once, and what they may do.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, byref, c_double, c_int32, c_int64, c_uint64, c_void_p, pointer
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wager.kvcache.pool import KVPool, PageIds
from wager.nn.native.library import Library, Matrix, Net, Pool, num_threads, raise_refusal
from wager.nn.rope import Rotary

FloatArray = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]


class Sampling(ctypes.Structure):
    """How a row chooses its tokens; a temperature of 0 takes the best score."""

    _fields_ = (
        ("seed", c_uint64),
        ("temperature", c_double),
        ("top_p", c_double),
        ("min_p", c_double),
        ("top_k", c_int64),
    )


class Embedding(ctypes.Structure):
    """Embeddings as floats, or as codes with scales and offsets for each group of inputs."""

    _fields_ = (
        ("floats", c_void_p),
        ("codes", c_void_p),
        ("scales", c_void_p),
        ("offsets", c_void_p),
        ("group", c_int64),
    )


class TargetModel(ctypes.Structure):
    """A target with its head, its embedding and its pool."""

    _fields_ = (
        ("net", POINTER(Net)),
        ("head", POINTER(Matrix)),
        ("vocab", c_int64),
        ("embedding", Embedding),
        ("pool", Pool),
        ("turns", c_void_p),
        ("num_turns", c_int64),
        ("taps", c_void_p),
        ("num_taps", c_int64),
    )


class BlockModel(ctypes.Structure):
    """A block drafter, the head for its guesses, and the block that it drafts."""

    _fields_ = (
        ("net", POINTER(Net)),
        ("fc", POINTER(Matrix)),
        ("norm", c_void_p),
        ("head", POINTER(Matrix)),
        ("head_ids", c_void_p),
        ("num_outputs", c_int64),
        ("pool", Pool),
        ("turns", c_void_p),
        ("num_turns", c_int64),
        ("sight", c_int64),
        ("mask_token", c_int64),
        ("length", c_int64),
        ("num_depths", c_int64),
        ("num_ranks", c_int64),
    )


class _Text(ctypes.Structure):
    _fields_ = (
        ("tokens", c_void_p),
        ("num_tokens", c_int64),
        ("limit", c_int64),
        ("pages", c_void_p),
        ("num_pages", c_int64),
        ("end_tokens", c_void_p),
        ("num_end_tokens", c_int64),
        ("sampling", Sampling),
        ("drafts", c_int64),
        ("most_nodes", c_int64),
        ("weight", c_double),
        ("match_length", c_int64),
        ("features", c_void_p),
        ("num_waiting", c_int64),
        ("most_waiting", c_int64),
    )


class _Rule(ctypes.Structure):
    _fields_ = (
        ("trust", c_int64),
        ("slope", c_double),
        ("offsets", c_void_p),
        ("lowest", c_double),
        ("highest", c_double),
        ("prices", c_void_p),
        ("num_prices", c_int64),
        ("is_chain", c_int64),
    )


class _Steps(ctypes.Structure):
    _fields_ = (
        ("target", POINTER(TargetModel)),
        ("drafter", POINTER(BlockModel)),
        ("rule", POINTER(_Rule)),
        ("texts", POINTER(_Text)),
        ("num_texts", c_int64),
        ("most_steps", c_int64),
        ("stop", POINTER(c_int32)),
        ("times", c_void_p),
        ("rows", c_void_p),
        ("draft_tokens", c_void_p),
        ("draft_logprobs", c_void_p),
        ("num_steps", c_int64),
        ("ending", c_int64),
    )


RECORDS = (TargetModel, BlockModel, _Text, _Rule, _Steps)


class Ending(IntEnum):
    """Why the steps ended."""

    DONE = 0
    TOKEN = 1
    """A token that ends a text was emitted."""
    FULL = 2
    """A text reached its limit, or has no room for another step."""
    MATCHED = 3
    """The tail of a text stood before, in the length that was asked for."""
    STOPPED = 4
    """Another thread has asked for it."""
    BROKEN = 5
    """The scores of the next step are not numbers. It was not taken."""


class Trust(IntEnum):
    """How a drafter's log-probabilities become probabilities of acceptance."""

    CALIBRATED = 0
    AS_GIVEN = 1
    CERTAIN = 2


class StepRule(NamedTuple):
    """Which nodes of the drafts are verified: the best ones, and as many as are worth the most."""

    prices: FloatArray
    """The price of n nodes, from none on, in what a token of weight 0 is worth."""
    trust: Trust = Trust.CERTAIN
    slope: float = 1.0
    """Weight of the draft's log-odds in those of acceptance."""
    offsets: FloatArray | None = None
    """What is added to the log-odds at each depth."""
    bounds: tuple[float, float] = (0.0, 0.0)
    """The least and the largest log-probability of which log-odds are taken."""
    is_chain: bool = False


class TextBuffer:
    """The tokens of one text in memory that the library reads and extends."""

    def __init__(self, limit: int) -> None:
        self.array: Int64Array = np.empty(limit, np.int64)
        self._count = 0

    def follow(self, tokens: Sequence[int]) -> int:
        """Takes in what the text has gained since the last call, and returns the number of its tokens."""
        count = len(tokens)
        self.array[self._count : count] = tokens[self._count :]
        self._count = count
        return count

    def added(self, count: int) -> list[int]:
        """Returns the tokens that the library has added; the text then has `count` tokens."""
        found: list[int] = self.array[self._count : count].tolist()
        self._count = count
        return found


class StepText(NamedTuple):
    """One row. Its last token is pending: it is in no cache."""

    buffer: TextBuffer
    tokens: Sequence[int]
    limit: int
    """The most tokens that the text may have."""
    pages: PageIds
    end_ids: Sequence[int]
    sampling: Sampling
    drafts: bool = False
    most_nodes: int = 0
    weight: float = 0.0
    """Log of what one of its tokens is worth."""
    match_length: int = 0
    """The steps end once a tail of this length stood before; 0: they do not."""
    keeps_features: bool = False


class TakenSteps(NamedTuple):
    """What the steps did."""

    num_steps: int
    ending: Ending
    times_ms: FloatArray
    """Drafting with the choice of nodes, and the rest: [steps, 2]."""
    counts: Int64Array
    """Verified nodes, accepted ones, and depths of the draft: [steps, rows, 3]."""
    tokens: list[list[int]]
    """The new tokens of every row."""
    draft_tokens: Int64Array | None
    """[steps, rows, depths, ranks]; None where the steps were plain."""
    draft_logprobs: npt.NDArray[np.float32] | None
    waiting: list[Tensor | None]
    """Features of every row's last tokens that no draft has read; None where nobody wants them."""


class NativeSteps:
    """Calls the library. It keeps its memory from call to call."""

    def __init__(self, library: Library, target: TargetModel, rotary: Rotary, feature_size: int) -> None:
        self._library, self._target, self._rotary = library, target, rotary
        self._feature_size = feature_size
        self.stop = c_int32(0)
        """Another thread ends steps that are being taken by setting this to 1."""
        self._memory = torch.empty(1 << 20, dtype=torch.uint8)
        self._features = torch.empty(0)

    def take(
        self, texts: Sequence[StepText], most_steps: int, drafter: BlockModel | None, rule: StepRule | None
    ) -> TakenSteps:
        """Takes up to `most_steps` steps. Raises the error of a refused call; nothing has changed then."""
        turns = self._rotary.table(max(text.limit for text in texts))
        self._target.turns, self._target.num_turns = turns.data_ptr(), turns.shape[0]
        own = [_text_record(text) for text in texts]
        records = (_Text * len(texts))(*[record for record, _ in own])
        waiting = self._lend_features(texts, records, most_steps)
        times, counts = np.empty((most_steps, 2)), np.empty((most_steps, len(texts), 3), np.int64)
        tokens = logprobs = None
        if drafter is not None:
            shape = (most_steps, len(texts), drafter.num_depths, drafter.num_ranks)
            tokens, logprobs = np.empty(shape, np.int64), np.empty(shape, np.float32)
        steps = _Steps(
            pointer(self._target),
            None if drafter is None else pointer(drafter),
            None if rule is None else pointer(_rule_record(rule)),
            records,
            len(texts),
            most_steps,
            pointer(self.stop),
            times.ctypes.data,
            counts.ctypes.data,
            None if tokens is None else tokens.ctypes.data,
            None if logprobs is None else logprobs.ctypes.data,
        )
        self._call(steps)
        num = steps.num_steps
        return TakenSteps(
            num,
            Ending(steps.ending),
            times[:num],
            counts[:num],
            [text.buffer.added(record.num_tokens) for text, record in zip(texts, records, strict=True)],
            None if tokens is None else tokens[:num],
            None if logprobs is None else logprobs[:num],
            [
                None if lines is None else lines[: record.num_waiting].clone()
                for lines, record in zip(waiting, records, strict=True)
            ],
        )

    def _lend_features(self, texts: Sequence[StepText], records: Any, most_steps: int) -> list[Tensor | None]:
        """Gives memory for waiting features to the rows whose drafter wants them."""
        sizes = [most_steps + 1 + text.most_nodes if text.keeps_features else 0 for text in texts]
        if sum(sizes) > self._features.shape[0]:
            self._features = torch.empty(sum(sizes), self._feature_size)
        found, start = list[Tensor | None](), 0
        for record, size in zip(records, sizes, strict=True):
            lines = self._features[start : start + size] if size else None
            if lines is not None:
                record.features, record.most_waiting = lines.data_ptr(), size
            found.append(lines)
            start += size
        return found

    def _call(self, steps: _Steps) -> None:
        threads = num_threads()
        while True:
            held = self._memory
            code = self._library.steps(byref(steps), held.data_ptr(), held.shape[0], threads)
            if code <= 0:
                break
            self._memory = torch.empty(code + code // 4, dtype=torch.uint8)
        if code < 0:
            raise_refusal(code)


def _text_record(text: StepText) -> tuple[_Text, Any]:
    """Returns the record of a row, and what keeps its memory alive."""
    pages = np.ascontiguousarray(text.pages, np.int64)
    ends = np.array(text.end_ids, np.int64)
    record = _Text(
        text.buffer.array.ctypes.data,
        text.buffer.follow(text.tokens),
        text.limit,
        pages.ctypes.data,
        len(pages),
        ends.ctypes.data,
        len(ends),
        text.sampling,
        text.drafts,
        text.most_nodes,
        text.weight,
        text.match_length,
        None,
        0,
        0,
    )
    record.kept = (pages, ends)
    return record, record.kept


def _rule_record(rule: StepRule) -> _Rule:
    prices = np.ascontiguousarray(rule.prices, np.float64)
    offsets = np.ascontiguousarray(rule.offsets if rule.offsets is not None else (), np.float64)
    record = _Rule(
        rule.trust,
        rule.slope,
        offsets.ctypes.data,
        *rule.bounds,
        prices.ctypes.data,
        len(prices),
        rule.is_chain,
    )
    record.kept = (prices, offsets)
    return record


def pool_record(pool: KVPool) -> Pool:
    """Returns the record of a pool."""
    return Pool(pool.store.data_ptr(), pool.num_slots, pool.spec.page_size)
