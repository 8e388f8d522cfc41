"""Writes a target's texts in bulk: many slots, refilled from a queue, that advance by one token per pass.

A prompt is read token by token, like the rest of the text, so all slots always do the same and on a CUDA
device one graph serves every pass. The host looks at the slots once in some passes. Sampled texts use the
same noise as the engine, by seed and position, so a text is the one that the engine would write. `wager
train` uses this writer on CUDA devices, and recipe_chat.py everywhere.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from wager.errors import InputError, ModelError
from wager.nn.kernels.staging import signed_seed
from wager.nn.noise import NoiseSource
from wager.train.slot_decoder import SlotDecoder
from wager.train.texts import TextOrder, Writer

_PASSES_PER_LOOK = 32
"""On a CUDA device the host waits for it at every look; on a CPU a look costs nothing."""

Tell = Callable[[int, int], None]
"""Receives the number of finished texts and the number of their tokens."""


@dataclass(frozen=True)
class _Slots:
    """The state of all slots on the device; passes change it in place."""

    tokens: Tensor
    """[slots, length]: prompts, and the texts after them."""
    positions: Tensor
    """Of the token that the next pass reads; for a finished text, of its last token."""
    num_prompt: Tensor
    stops: Tensor
    """Largest number of tokens, including the prompt."""
    temperatures: Tensor
    seeds: Tensor
    is_active: Tensor
    is_broken: Tensor
    """Whether the scores of some token were not finite."""


def _free_slots(num_slots: int, length: int, device: torch.device) -> _Slots:
    def zeros(dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.zeros(num_slots, dtype=dtype, device=device)

    return _Slots(
        tokens=torch.zeros(num_slots, length, dtype=torch.int64, device=device),
        positions=zeros(),
        num_prompt=zeros() + 1,
        stops=zeros() + 2,
        temperatures=zeros(torch.float32),
        seeds=zeros(),
        is_active=zeros(torch.bool),
        is_broken=zeros(torch.bool),
    )


class StreamWriter:
    """Continues prompts. Used as the `Writer` of texts.py."""

    def __init__(self, decoder: SlotDecoder, end_ids: Collection[int]) -> None:
        """A text ends behind any of `end_ids`."""
        self.decoder, self.end_ids = decoder, frozenset(end_ids)
        spec, device = decoder.spec, decoder.device
        self._slots = _free_slots(decoder.num_slots, decoder.length, device)
        self._is_end = torch.zeros(spec.vocab_size, dtype=torch.bool, device=device)
        self._choose = self._by_kernel if decoder.has_kernels else self._plainly
        self._noise = NoiseSource(spec.vocab_size, device, capacity=0)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._owners: list[int | None] = [None] * decoder.num_slots

    def __call__(self, orders: Sequence[TextOrder]) -> list[list[int]]:
        """Returns the output of every order. Raises InputError or ModelError."""
        return self.write(orders)

    @torch.inference_mode()
    def write(
        self,
        orders: Sequence[TextOrder],
        max_seconds: float = math.inf,
        end_ids: Collection[int] | None = None,
        tell: Tell = lambda _texts, _tokens: None,
    ) -> list[list[int]]:
        """Returns the output of every order, including its end token.

        At the time limit all texts stop where they are; those that had not begun are empty. `end_ids` replace
        the writer's own for this call. Raises InputError if an order does not fit its slot, and ModelError if
        the scores of the target are not finite.
        """
        self._check(orders)
        self._is_end.zero_()
        self._is_end[sorted(self.end_ids if end_ids is None else end_ids)] = True
        self._capture()
        outputs: list[list[int]] = [[] for _ in orders]
        waiting = [number for number, order in enumerate(orders) if order.num_output > 0][::-1]
        began, done, num_tokens = time.perf_counter(), 0, 0
        try:
            while True:
                is_over = time.perf_counter() - began >= max_seconds
                for number, output in self._collected(orders, everything=is_over):
                    outputs[number] = output
                    done, num_tokens = done + 1, num_tokens + len(output)
                tell(done, num_tokens)
                if not is_over:
                    self._refill(orders, waiting)
                if all(owner is None for owner in self._owners):
                    return outputs
                for _ in range(_PASSES_PER_LOOK if self._graph is not None else 1):
                    self._pass()
        finally:
            self._owners = [None] * self.decoder.num_slots
            self._slots.is_active.zero_()

    def _check(self, orders: Sequence[TextOrder]) -> None:
        length = self.decoder.length
        for order in orders:
            num_tokens = len(order.prompt_ids) + order.num_output
            if not order.prompt_ids or num_tokens > length:
                raise InputError(
                    f"a text of {num_tokens} tokens after a prompt of {len(order.prompt_ids)}: "
                    f"expected a prompt, and at most {length} in all",
                    field="own_text",
                )

    def _pass(self) -> None:
        if self._graph is None:
            self._advance()
        else:
            self._graph.replay()

    def _capture(self) -> None:
        """Captures a pass over idle slots, once. The passes before it compile the kernels."""
        if self._graph is not None or not self.decoder.has_kernels:
            return
        side = torch.cuda.Stream(self.decoder.device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._advance()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._advance()
        self._graph = graph

    def _advance(self) -> None:
        """Reads one token in every slot, and writes the next one in the active slots."""
        slots = self._slots
        here = slots.positions
        places = (here + 1).clamp(max=self.decoder.length - 1)
        scores = self.decoder.step(slots.tokens.gather(1, here[:, None])[:, 0], here)
        writes = slots.is_active & (places >= slots.num_prompt)
        chosen, highest = self._choose(scores, places, writes)
        known = slots.tokens.gather(1, places[:, None])[:, 0]
        taken = torch.where(writes, chosen, known)
        slots.tokens.scatter_(1, places[:, None], taken[:, None])
        slots.is_broken.logical_or_(writes & ~torch.isfinite(highest))
        here.copy_(torch.where(slots.is_active, places, here))
        ended = writes & (self._is_end[taken] | (places + 1 >= slots.stops))
        slots.is_active.logical_and_(~ended)

    def _by_kernel(self, scores: Tensor, places: Tensor, _writes: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the chosen tokens and their highest plain scores, without reading a value on the host."""
        from wager.nn.kernels.filter import SamplingRows
        from wager.nn.kernels.sample import sample_tokens

        slots = self._slots
        none = torch.zeros_like(slots.temperatures)
        asked = SamplingRows(slots.temperatures, none.int(), none + 1.0, none, slots.seeds, places)
        found = sample_tokens(scores, asked)
        return found.token_ids, found.highest

    def _plainly(self, scores: Tensor, places: Tensor, writes: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the same in plain torch, with noise only for the slots that sample a token."""
        scores, slots = scores.float(), self._slots
        highest = scores.max(dim=1).values
        samples = (writes & (slots.temperatures > 0)).nonzero()[:, 0]
        if len(samples):
            keys = list(zip(slots.seeds[samples].tolist(), places[samples].tolist(), strict=True))
            heated = scores[samples] / slots.temperatures[samples, None]
            scores[samples] = heated + self._noise.rows(keys).to(scores)
        return scores.argmax(dim=1), highest

    def _collected(self, orders: Sequence[TextOrder], *, everything: bool) -> Iterator[tuple[int, list[int]]]:
        """Yields the finished texts, or all, by the numbers of their orders, and releases their slots."""
        slots, active = self._slots, self._slots.is_active.tolist()
        done = [
            slot
            for slot, owner in enumerate(self._owners)
            if owner is not None and (everything or not active[slot])
        ]
        if not done:
            return
        if bool(slots.is_broken.any()):
            raise ModelError("the target's scores are not finite: its weights do not work in this dtype")
        at = torch.tensor(done, device=self.decoder.device)
        rows, lasts = slots.tokens[at].cpu(), slots.positions[at].tolist()
        for slot, row, last in zip(done, rows, lasts, strict=True):
            number = self._owners[slot]
            assert number is not None
            self._owners[slot] = None
            yield number, row[len(orders[number].prompt_ids) : last + 1].tolist()
        slots.is_active[at] = False
        slots.positions[at] = 0  # an idle slot attends to one key

    def _refill(self, orders: Sequence[TextOrder], waiting: list[int]) -> None:
        """Gives free slots the next orders of the queue."""
        free = [slot for slot, owner in enumerate(self._owners) if owner is None][: len(waiting)]
        if not free:
            return
        for slot in free:
            self._owners[slot] = waiting.pop()
        begun = [orders[number] for slot in free if (number := self._owners[slot]) is not None]
        prompts = torch.zeros(len(begun), max(len(order.prompt_ids) for order in begun), dtype=torch.int64)
        for row, order in zip(prompts, begun, strict=True):
            row[: len(order.prompt_ids)] = torch.tensor(order.prompt_ids)
        slots, device = self._slots, self.decoder.device
        at = torch.tensor(free, device=device)
        lengths = [len(order.prompt_ids) for order in begun]
        stops = [len(order.prompt_ids) + order.num_output for order in begun]
        slots.tokens[at, : prompts.shape[1]] = prompts.to(device)
        slots.positions[at] = 0
        slots.num_prompt[at] = torch.tensor(lengths, device=device)
        slots.stops[at] = torch.tensor(stops, device=device)
        slots.temperatures[at] = torch.tensor([order.temperature for order in begun], device=device)
        slots.seeds[at] = torch.tensor([signed_seed(order.seed) for order in begun], device=device)
        slots.is_active[at] = True
        slots.is_broken[at] = False


@contextmanager
def lent_writer(load: Callable[[], StreamWriter]) -> Iterator[Writer]:
    """Yields a writer that is loaded at its first call; its memory is released at the end."""
    loaded: list[StreamWriter] = []

    def write(orders: Sequence[TextOrder]) -> list[list[int]]:
        if not loaded:
            loaded.append(load())
        return loaded[0](orders)

    try:
        yield write
    finally:
        loaded.clear()
        release_memory()


def release_memory() -> None:
    """Returns the memory of deleted networks to the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
