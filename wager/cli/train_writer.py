"""Generates a target's text with Wager's engine, in large batches, as training data for a drafter.

wager.train may not import the engine, so `wager train` passes this writer to it. It uses plain decoding,
because a large batch leaves little room for drafts. The engine is loaded on the first call, and released
before the training loads the target again.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import torch

from wager.errors import ModelError
from wager.llm import LLM
from wager.records import SamplingParams
from wager.train.settings import DrafterSettings
from wager.train.texts import TextOrder


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
