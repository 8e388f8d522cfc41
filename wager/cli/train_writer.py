"""Text written by a target through Wager's own engine, many requests at once, for training to learn from.

The bridge between `train`, which may not know the engine, and the engine. Decodes plainly: the text is the
target's own in any case, and a large batch leaves little for guesses. Loaded at the first order only, and
gone before the teacher is loaded, which wants the same memory.
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
    """Continues beginnings; used as a context, at whose end the engine is given up."""

    def __init__(self, folder: Path, settings: DrafterSettings, device: torch.device, context: int) -> None:
        """`context` is the longest text, beginning included."""
        self._folder, self._settings = folder, settings
        self._device, self._context = device, context
        self._llm: LLM | None = None

    def __call__(self, orders: Sequence[TextOrder]) -> list[list[int]]:
        """Raises ModelError where a text could not be written."""
        if self._llm is None:
            self._llm = self._load()
        params = [
            SamplingParams(max_tokens=order.num_output, temperature=order.temperature, seed=order.seed)
            for order in orders
        ]
        outputs = self._llm.generate([order.prompt_ids for order in orders], params)
        for output in outputs:
            if output.error:
                raise ModelError(f"the target could not write: {output.error}")
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
