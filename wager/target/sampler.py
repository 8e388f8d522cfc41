"""The target's own choice at every judged position: argmax of the processed, noised scores.

Each node is processed for its own path: penalties count the tokens on it, minimum length its depth, and a
grammar's mask is that of the path. The noise of a position is a pure function of (seed, position), so a
choice does not depend on how it came to be judged: speculation on or off, chain or tree, alone or in a batch.
On a device with kernels the choices are launched first and read later, so that the host can launch more work
in between. The sampler knows no verdicts, no grammars and no caches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wager.nn.native.choose import NativeChooser
from wager.nn.noise import NoiseSource
from wager.records import SamplingParams, TopLogprobs
from wager.tree import Tree

if TYPE_CHECKING:
    from wager.target.choice_kernels import DeviceChooser


class ChoiceRow(NamedTuple):
    """What one row's choices depend on."""

    params: SamplingParams
    seed: int
    tokens: Sequence[int]
    """The whole sequence so far, pending tokens included; the root is the last."""
    num_prompt: int
    tree: Tree
    end_ids: tuple[int, ...] = ()
    """Tokens that end the text, held back until min_tokens."""
    bare: bool = False
    """What `is_bare` says of the params, if it was asked; it holds for the whole request."""
    allowed: npt.NDArray[np.uint8] | None = None
    """The tokens that a grammar allows behind the root and each node, a bit per token; None: all tokens."""

    @property
    def is_plain(self) -> bool:
        """Greedy with nothing to process: the bare argmax."""
        return self.bare or (self.params.temperature == 0.0 and not self.has_processing)

    @property
    def has_processing(self) -> bool:
        p = self.params
        return bool(
            p.logit_bias
            or p.repetition_penalty != 1.0
            or p.presence_penalty
            or p.frequency_penalty
            or self.allowed is not None
            or (self.end_ids and len(self.tokens) - self.num_prompt < p.min_tokens)
        )


def is_bare(params: SamplingParams) -> bool:
    """Whether the choice is the argmax of unprocessed scores at every position of a request."""
    processed = params.logit_bias or params.presence_penalty or params.frequency_penalty
    plain = params.temperature == 0.0 and params.repetition_penalty == 1.0 and params.min_tokens == 0
    return plain and not processed and params.grammar is None and not closes_softly(params)


def closes_softly(params: SamplingParams) -> bool:
    """Whether the scores themselves may close the request's thinking."""
    return params.thinking is not None and params.thinking.soft_ratio is not None


class Choices(NamedTuple):
    """One entry per judged position, rows in order."""

    tokens: list[int]
    broken: list[bool]
    """Whether the scores there were NaN or infinite; [] where none was."""
    top_p1: list[float]
    """The target's highest probability there; [] unless asked for."""
    logprobs: list[TopLogprobs | None]
    """[] unless a row asked for them."""
    soft: Sequence[bool] = ()
    """Whether the close of its thinking is likely enough there; () unless a row closes softly."""


NO_CHOICES = Choices([], [], [], [])
"""The choices of a pass without judged positions."""


class PendingChoices:
    """Choices that have been launched and not read."""

    __slots__ = ("_logits", "_rows", "_sampler", "_want_p1", "device_tokens")

    def __init__(
        self,
        sampler: Sampler,
        logits: Tensor,
        rows: Sequence[ChoiceRow],
        want_p1: bool,
        device_tokens: Tensor | None,
    ) -> None:
        self._sampler, self._logits, self._rows, self._want_p1 = sampler, logits, rows, want_p1
        self.device_tokens = device_tokens
        """The chosen tokens on a device with kernels, for work that is launched behind them; else None.

        They are final for rows that need no host-side processing.
        """

    @property
    def is_done(self) -> bool:
        """Whether the device has made the choices; False where this is not known. Precondition: as `read`."""
        return self._sampler.is_done

    def read(self) -> Choices:
        """Wait for the choices. Precondition: this sampler has launched no others since."""
        return self._sampler.read(self._logits, self._rows, self._want_p1, self.device_tokens)


class Sampler:
    """Chooses tokens. `noise` is shared with the drafter."""

    def __init__(
        self,
        noise: NoiseSource,
        *,
        by_kernels: bool = False,
        native: Callable[[], NativeChooser | None] = lambda: None,
    ) -> None:
        """`by_kernels`: the scores are on a device with kernels, which choose for all rows at once.

        `native` returns the chooser of native passes while the target's passes are native.
        """
        self.noise = noise
        self._native = native
        self._device = _device_chooser(noise.device) if by_kernels else None

    def launch(self, logits: Tensor, rows: Sequence[ChoiceRow], want_p1: bool = False) -> PendingChoices:
        """Launch the choice behind every judged position: per row its root, then its nodes."""
        tokens = None
        if self._device is not None and logits.dtype != torch.float64:
            tokens = self._device.launch(logits, rows)
        return PendingChoices(self, logits, rows, want_p1, tokens)

    @property
    def is_done(self) -> bool:
        """Whether the device is known to have made the choices that were launched last."""
        return self._device is not None and self._device.is_done

    def choose(self, logits: Tensor, rows: Sequence[ChoiceRow], want_p1: bool = False) -> Choices:
        """Launch the choices and wait for them."""
        return self.launch(logits, rows, want_p1).read()

    def read(
        self, logits: Tensor, rows: Sequence[ChoiceRow], want_p1: bool, device_tokens: Tensor | None
    ) -> Choices:
        """Wait for launched choices and make those that need processing on the host."""
        on_device = device_tokens is not None
        if self._device is not None and on_device:
            chosen, scores = self._device.read()
            highest: Sequence[float] = () if np.isfinite(scores).all() else scores.tolist()
        else:
            chosen, highest = _best(logits)
        broken = [] if all(map(math.isfinite, highest)) else [not math.isfinite(one) for one in highest]
        start, want_logprobs, want_soft = 0, False, False
        for row in rows:
            stop = start + row.tree.num_nodes + 1
            if row.bare and row.params.logprobs is None:
                start = stop
                continue
            settled = row.bare or row.is_plain or (on_device and not row.has_processing)
            if not settled and not (broken and any(broken[start:stop])):
                chosen[start:stop] = self._choose_row(logits[start:stop], row)
            want_logprobs = want_logprobs or row.params.logprobs is not None
            want_soft = want_soft or (not row.bare and closes_softly(row.params))
            start = stop
        p1 = logits.softmax(dim=-1).amax(dim=-1).tolist() if want_p1 else []
        logprobs = _logprobs(logits, rows, chosen) if want_logprobs else []
        return Choices(chosen, broken, p1, logprobs, _soft(logits, rows, chosen) if want_soft else ())

    def warm(self, vocab_size: int, dtype: torch.dtype) -> None:
        """Compile or load whatever requests may need, before the first request on a device."""
        if self._device is None or self.noise.device.type != "cuda" or dtype == torch.float64:
            return
        logits = torch.zeros(1, vocab_size, dtype=dtype, device=self.noise.device)
        self._device.warm(logits)
        processed = SamplingParams(
            temperature=1.0,
            top_k=1,
            top_p=0.5,
            min_p=0.5,
            repetition_penalty=2.0,
            presence_penalty=1.0,
            frequency_penalty=1.0,
            logit_bias={0: 1.0},
            min_tokens=2,
            logprobs=1,
        )
        every = np.full((1, -(-vocab_size // 8)), 255, np.uint8)
        self.choose(logits, [ChoiceRow(processed, 0, (0, 0), 1, Tree.chain([]), (0,), allowed=every)])

    @torch.inference_mode()
    def _choose_row(self, logits: Tensor, row: ChoiceRow) -> list[int]:
        scores = logits if logits.dtype == torch.float64 else logits.float()
        if row.has_processing:
            scores = _processed(scores, row)
        params = row.params
        if params.temperature == 0.0:
            return _best(scores)[0]
        root = len(row.tokens) - 1
        positions = [root + depth + 1 for depth in (0, *row.tree.depths.tolist())]
        native = self._native()
        if native is not None and native.fits(scores):
            return native(scores, params, row.seed, positions)
        scores = _filtered(scores / params.temperature, params)
        noise = self.noise.rows([(row.seed, position) for position in positions])
        return _best(scores + noise)[0]


def _device_chooser(device: torch.device) -> DeviceChooser:
    from wager.target.choice_kernels import DeviceChooser

    return DeviceChooser(device)


_NUMPY_DTYPES = (torch.float32, torch.float64)


def _best(logits: Tensor) -> tuple[list[int], list[float]]:
    """Each row's best token, the lower id on a tie, and its score; a NaN anywhere in a row comes out."""
    if logits.is_cpu and logits.dtype in _NUMPY_DTYPES:
        table = logits.numpy()  # its argmax is several times quicker than torch's
        places: list[int] = table.argmax(axis=-1).tolist()
        return places, [table.item(row, place) for row, place in enumerate(places)]
    values, tokens = logits.max(dim=-1)
    return tokens.tolist(), values.tolist()


def _processed(scores: Tensor, row: ChoiceRow) -> Tensor:
    """Bias, penalties, minimum length and grammar, each node for its own path."""
    params, scores = row.params, scores.clone()
    for index in range(scores.shape[0]):
        path = row.tree.path_to(index - 1) if index else ()
        _penalise(scores[index], row, [int(token) for token in path])
        generated = len(row.tokens) - row.num_prompt + len(path)
        if row.end_ids and generated < params.min_tokens:
            # A tokenizer may name an end that the model has no score for.
            scores[index, [i for i in row.end_ids if i < scores.shape[1]]] = -torch.inf
    if params.logit_bias:
        ids = torch.tensor(list(params.logit_bias), device=scores.device)
        bias = torch.tensor(list(params.logit_bias.values()), dtype=scores.dtype, device=scores.device)
        scores[:, ids] += bias
    if row.allowed is not None:
        bits = np.unpackbits(row.allowed, axis=1, count=scores.shape[1], bitorder="little")
        scores.masked_fill_(torch.from_numpy(bits == 0).to(scores.device), -torch.inf)
    return scores


def _penalise(scores: Tensor, row: ChoiceRow, path: list[int]) -> None:
    """In place: repetition over prompt and output, presence and frequency over output alone."""
    params = row.params
    if params.repetition_penalty != 1.0:
        seen = torch.tensor(sorted({*row.tokens, *path}), device=scores.device)
        values = scores[seen]
        penalty = params.repetition_penalty
        scores[seen] = torch.where(values < 0, values * penalty, values / penalty)
    if params.presence_penalty or params.frequency_penalty:
        counts: dict[int, int] = {}
        for token in [*row.tokens[row.num_prompt :], *path]:
            counts[token] = counts.get(token, 0) + 1
        if counts:
            ids = torch.tensor(list(counts), device=scores.device)
            times = torch.tensor(list(counts.values()), dtype=scores.dtype, device=scores.device)
            scores[ids] -= params.frequency_penalty * times + params.presence_penalty


def _filtered(scores: Tensor, params: SamplingParams) -> Tensor:
    """Top-k, top-p and min-p over scaled scores: what falls out becomes -inf. The best token always stays."""
    vocab = scores.shape[-1]
    if 0 < params.top_k < vocab:
        least = scores.topk(params.top_k, dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    if params.top_p < 1.0:
        ordered, places = scores.sort(dim=-1, descending=True, stable=True)
        probs = ordered.softmax(dim=-1)
        drop = probs.cumsum(dim=-1) - probs >= params.top_p
        drop[:, 0] = False
        scores = scores.masked_fill(drop.scatter(1, places, drop), -torch.inf)
    if params.min_p > 0.0:
        probs = scores.softmax(dim=-1)
        scores = scores.masked_fill(probs < params.min_p * probs.amax(dim=-1, keepdim=True), -torch.inf)
    return scores


def _logprobs(logits: Tensor, rows: Sequence[ChoiceRow], chosen: list[int]) -> list[TopLogprobs | None]:
    """Entries of the rows that asked for some; None at the positions of the others."""
    found: list[TopLogprobs | None] = []
    for row in rows:
        num, start = row.tree.num_nodes + 1, len(found)
        count = row.params.logprobs
        if count is None:
            found += [None] * num
            continue
        found += top_logprobs(logits[start : start + num], chosen[start : start + num], count)
    return found


def top_logprobs(logits: Tensor, chosen: Sequence[int], count: int) -> list[TopLogprobs]:
    """The log-probabilities of one chosen token and of the `count` best ones in each line of scores."""
    table = logits.double().log_softmax(dim=-1)
    own = table.gather(1, torch.tensor(chosen, device=table.device)[:, None])[:, 0]
    top = table.topk(min(count, table.shape[-1]), dim=-1)
    return [
        TopLogprobs(*parts)
        for parts in zip(own.tolist(), top.indices.tolist(), top.values.tolist(), strict=True)
    ]


def _soft(logits: Tensor, rows: Sequence[ChoiceRow], chosen: list[int]) -> list[bool]:
    """Where P(close) / P(chosen) of the unprocessed scores is at least what the row asked for."""
    found: list[bool] = []
    for row in rows:
        num, start = row.tree.num_nodes + 1, len(found)
        thinking = row.params.thinking
        if thinking is None or thinking.soft_ratio is None:
            found += [False] * num
            continue
        table = logits[start : start + num].double()
        own = table.gather(1, torch.tensor(chosen[start : start + num], device=table.device)[:, None])[:, 0]
        ratios = (table[:, thinking.natural_ids[0]] - own).exp()
        found += (ratios >= thinking.soft_ratio).tolist()
    return found
