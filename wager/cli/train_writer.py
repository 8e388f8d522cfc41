"""Chooses the writer of a target's text, as training data for a drafter: the stream writer or the engine.

On a CUDA device all texts advance together in the slots of `wager.train.stream_writer`. Elsewhere Wager's
engine writes them, with plain decoding, because a large batch leaves little room for drafts; wager.train may
not import the engine. Both write the same texts by seed. They load the target on the first call, and release
it before the training loads it again.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

import torch

from wager.errors import ModelError
from wager.llm import LLM
from wager.nn.models.hf_config import pick_dtype
from wager.records import SamplingParams
from wager.train.drafter_training import DrafterTraining
from wager.train.settings import DrafterSettings
from wager.train.slot_decoder import can_capture, load_slot_decoder
from wager.train.stream_writer import StreamWriter, lent_writer
from wager.train.texts import TextOrder, Writer


def target_writer(training: DrafterTraining) -> AbstractContextManager[Writer]:
    """Returns the writer for the texts of a training, as a context that releases its memory."""
    target, settings, device = training.target, training.settings, training.device
    context = min(settings.row_len + settings.heldout_tokens, target.spec.max_position)
    dtype = pick_dtype(settings.dtype, target.values, str(device))
    if not can_capture(target.spec, dtype, device):
        return EngineWriter(target.folder, settings, device, context)

    def load() -> StreamWriter:
        decoder = load_slot_decoder(target.folder, dtype, device, settings.write_rows, context)
        return StreamWriter(decoder, target.tokenizer.eos_ids)

    return lent_writer(load)


class EngineWriter:
    """Continues prompts. Used as a context manager, which releases the engine at its end."""

    def __init__(self, folder: Path, settings: DrafterSettings, device: torch.device, context: int) -> None:
        """`context` is the length of the longest text with its prompt."""
        self._folder, self._settings = folder, settings
        self._device, self._context = device, context
        self._llm: LLM | None = None

    def __call__(self, orders: Sequence[TextOrder]) -> list[list[int]]:
        """Returns the token ids of each text. Raises ModelError if a request failed."""
        if self._llm is None:
            self._llm = self._load()
        params = [
            SamplingParams(max_tokens=order.num_output, temperature=order.temperature, seed=order.seed)
            for order in orders
        ]
        outputs = self._llm.generate([order.prompt_ids for order in orders], params, use_tqdm=False)
        for output in outputs:
            if output.error:
                raise ModelError(f"the target could not generate a text: {output.error}")
        return [output.token_ids for output in outputs]

    def __enter__(self) -> EngineWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._llm is not None:
            self._llm = None
            gc.collect()
            if self._device.type == "cuda":
                torch.cuda.empty_cache()

    def _load(self) -> LLM:
        return LLM(
            str(self._folder),
            drafter=None,
            policy="ar",
            dtype=self._settings.dtype,
            device=str(self._device),
            max_rows=self._settings.write_rows,
            max_context=self._context,
            prefix_reuse=False,
            threads=torch.get_num_threads(),
        )
