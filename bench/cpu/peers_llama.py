"""llama.cpp at its lowest level: one model file, one context, greedy decoding token by token.

llama-cpp-python's own `Llama` copies scores at every token; here only the C functions are called, so that
what is measured is llama.cpp. Weights are read into memory, not mapped. Needs llama-cpp-python, of the
optional extra `bench`. Called by peers.py and peers_passes.py; knows nothing of Wager's engine.
"""

from __future__ import annotations

import ctypes
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bench.cpu.gguf_file import library
from wager.bench.records import Answer, Timing
from wager.errors import ModelError, one_line
from wager.records import SamplingParams

__all__ = ["CACHES", "LlamaContext", "LlamaModel", "LlamaPeer", "LlamaSettings", "ScoredBatch", "Scores"]

CACHES = ("f16", "f32")
"""What keys and values may be kept in; llama.cpp's own choice is f16."""
_ERROR = 3  # llama.cpp's log level

Scores = npt.NDArray[np.float32]


class LlamaSettings(NamedTuple):
    """How a context runs. `num_batch`: most tokens of a prompt in one pass."""

    flash: bool = False
    cache: str = "f16"
    threads: int = 2
    num_context: int = 1024
    num_batch: int = 256

    def __str__(self) -> str:
        return f"flash attention {'on' if self.flash else 'off'}, K/V in {self.cache}"


class _Voice:
    """llama.cpp's log: silent, but its last complaints are kept for an error message."""

    def __init__(self, llama: Any) -> None:
        self.said: deque[str] = deque(maxlen=8)
        # NOTE: the callback is llama.cpp's for as long as the process lives; without a reference it would be
        # collected, and called all the same.
        self._callback = llama.llama_log_callback(self._hear)
        llama.llama_log_set(self._callback, ctypes.c_void_p(0))

    def _hear(self, level: int, text: bytes, _: object) -> None:
        if level == _ERROR:
            self.said.append(text.decode("utf-8", "replace"))

    def last(self) -> str:
        return one_line(" ".join(self.said)) or "no reason given"


_voices: list[_Voice] = []


def _voice(llama: Any) -> _Voice:
    if not _voices:
        llama.llama_backend_init()
        _voices.append(_Voice(llama))
    return _voices[0]


class LlamaModel:
    """The weights of a GGUF file. Raises ModelError where llama.cpp refuses it."""

    def __init__(self, path: Path) -> None:
        llama = library("llama_cpp")
        voice = _voice(llama)
        params = llama.llama_model_default_params()
        _set(params, load_mode=llama.LLAMA_LOAD_MODE_NONE, lazy_mode=llama.LLAMA_LAZY_MODE_OFF)
        self.handle = llama.llama_model_load_from_file(str(path).encode(), params)
        if not self.handle:
            raise ModelError(f"llama.cpp cannot load {path.name}: {voice.last()}")
        self.vocab_size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.handle))

    @property
    def system(self) -> str:
        """What the library was built for, in its own words."""
        return one_line(library("llama_cpp").llama_print_system_info().decode())

    def close(self) -> None:
        library("llama_cpp").llama_model_free(self.handle)


class LlamaContext:
    """A sequence in llama.cpp. Token ids go in, scores come out; `keep` takes tokens back."""

    def __init__(self, model: LlamaModel, settings: LlamaSettings) -> None:
        self._llama = llama = library("llama_cpp")
        self.model, self.settings = model, settings
        self._handle = llama.llama_init_from_model(model.handle, _context_params(llama, settings))
        if not self._handle:
            raise ModelError(f"llama.cpp makes no context ({settings}): {_voice(llama).last()}")
        self._memory = llama.llama_get_memory(self._handle)
        self._one = (llama.llama_token * 1)()
        self._one_batch = llama.llama_batch_get_one(self._one, 1)
        self._address, self._scores = 0, np.empty(0, np.float32)

    def keep(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        if length:
            self._llama.llama_memory_seq_rm(self._memory, 0, length, -1)
        else:
            self._llama.llama_memory_clear(self._memory, False)

    def read(self, token_ids: Sequence[int]) -> None:
        """A prompt; scores of its last token only."""
        for start in range(0, len(token_ids), self.settings.num_batch):
            part = token_ids[start : start + self.settings.num_batch]
            tokens = (self._llama.llama_token * len(part))(*part)
            self.decode(self._llama.llama_batch_get_one(tokens, len(part)))

    def step(self, token: int) -> None:
        """One more token."""
        self._one[0] = token
        self.decode(self._one_batch)

    def decode(self, batch: Any) -> None:
        """One pass, to its end."""
        status = self._llama.llama_decode(self._handle, batch)
        if status:
            raise ModelError(f"llama.cpp failed with status {status}: {_voice(self._llama).last()}")

    def best(self) -> int:
        """The likeliest next token."""
        pointer = self._llama.llama_get_logits_ith(self._handle, -1)
        address = ctypes.cast(pointer, ctypes.c_void_p).value or 0
        if address != self._address:  # it stays where it is; a new view costs more than the search in it
            self._address = address
            self._scores = np.ctypeslib.as_array(pointer, shape=(self.model.vocab_size,))
        return int(self._scores.argmax())

    def scores(self, token_ids: Sequence[int], start: int = 0) -> Scores:
        """Scores behind every one of these tokens, which stand at `start`."""
        batch = ScoredBatch(token_ids, start)
        self.decode(batch.batch)
        found = np.ctypeslib.as_array(self.wait(), shape=(len(token_ids), self.model.vocab_size)).copy()
        batch.close()
        return found

    def wait(self) -> Any:
        """The scores of the last pass where they lie, once they are there."""
        return self._llama.llama_get_logits(self._handle)

    def close(self) -> None:
        self._llama.llama_free(self._handle)


class ScoredBatch:
    """Tokens of one sequence whose scores are all wanted."""

    def __init__(self, token_ids: Sequence[int], start: int) -> None:
        self._llama = llama = library("llama_cpp")
        self.batch = batch = llama.llama_batch_init(len(token_ids), 0, 1)
        batch.n_tokens = len(token_ids)
        for index, token in enumerate(token_ids):
            batch.token[index], batch.pos[index], batch.logits[index] = token, start + index, 1
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, 0

    def close(self) -> None:
        self._llama.llama_batch_free(self.batch)


class LlamaPeer:
    """Plain greedy decoding by llama.cpp, whatever the temperature of the request: sampling takes no less."""

    compared = False  # a near-tie decides otherwise in another order of sums

    def __init__(self, name: str, context: LlamaContext) -> None:
        self.name, self.context = name, context

    def begin(self) -> None:
        """Nothing is kept between answers."""

    def answer(self, prompt_ids: Sequence[int], params: SamplingParams) -> Answer:
        context, start = self.context, time.perf_counter()
        context.keep(0)
        context.read(prompt_ids)
        tokens = [context.best()]
        first_s = time.perf_counter() - start
        while len(tokens) < params.max_tokens:
            context.step(tokens[-1])
            tokens.append(context.best())
        return Answer(Timing(time.perf_counter() - start, first_s, len(tokens)), tuple(tokens))


def _context_params(llama: Any, settings: LlamaSettings) -> Any:
    params = llama.llama_context_default_params()
    cache = {"f16": llama.GGML_TYPE_F16, "f32": llama.GGML_TYPE_F32}[settings.cache]
    flash = llama.LLAMA_FLASH_ATTN_TYPE_ENABLED if settings.flash else llama.LLAMA_FLASH_ATTN_TYPE_DISABLED
    _set(
        params,
        n_ctx=settings.num_context,
        n_batch=settings.num_batch,
        n_ubatch=settings.num_batch,
        n_seq_max=1,
        n_threads=settings.threads,
        n_threads_batch=settings.threads,
        flash_attn_type=flash,
        type_k=cache,
        type_v=cache,
        no_perf=True,
    )
    return params


def _set(params: Any, **values: Any) -> None:
    """Fields of a C record. A name it does not have would be taken silently, and do nothing."""
    known = {name for name, *_ in params._fields_}
    for name, value in values.items():
        if name not in known:
            raise ModelError(f"this llama-cpp-python has no setting {name}: another release is needed")
        setattr(params, name, value)
