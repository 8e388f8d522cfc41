"""Other decoders in the same process, on the same folders: transformers' plain, assisted and prompt-lookup.

They use the same weights, dtype, device, threads, prompts as token ids and number of new tokens, with the end
of text ignored. Other settings are the defaults of transformers. Their sampled text uses another noise than
Wager's and is not compared with it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from wager.bench.plan import check_peers
from wager.bench.records import Answer, Timing
from wager.draft import kind_of
from wager.errors import ConfigError, ModelError, one_line
from wager.gguf.header import require_folder
from wager.nn.weights import read_config
from wager.records import SamplingParams

__all__ = ["Peer", "PeerSource", "assistant_beside", "load_peers"]

LOOKUP_TOKENS = 10


class PeerSource(NamedTuple):
    """The source of peers: the target's folder, and the folder of a small model for `assisted`."""

    folder: Path
    assistant: Path | None
    dtype: torch.dtype
    device: torch.device
    threads: int
    """Number of threads on a CPU; 0: as many as torch has."""


class _FirstToken:
    """A streamer that records when the first new tokens arrived; it receives the prompt before them."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.first_s, self.num_first = 0.0, 0
        self._calls = 0

    def put(self, tokens: torch.Tensor) -> None:
        self._calls += 1
        if self._calls == 2:
            self.first_s, self.num_first = time.perf_counter() - self.start, tokens.numel()

    def end(self) -> None:
        pass


class Assistance(NamedTuple):
    """What makes the guesses in transformers' generation; by default there are none."""

    assistant: Any = None
    lookup_tokens: int | None = None


class Peer:
    """One generation method of transformers."""

    def __init__(
        self, name: str, model: Any, assistance: Assistance, *, compared: bool, threads: int = 0
    ) -> None:
        self.name, self.model, self.assistance, self.compared = name, model, assistance, compared
        self._threads = threads

    def begin(self) -> None:
        """Does nothing, because a peer keeps no state between answers."""

    def answer(self, prompt_ids: Sequence[int], params: SamplingParams) -> Answer:
        settings = _settings(params, self.assistance.lookup_tokens)
        if params.seed is not None:
            torch.manual_seed(params.seed)
        if self._threads:  # the engine takes threads from torch for its own passes
            torch.set_num_threads(self._threads)
        try:
            with _quiet(), torch.inference_mode():
                return self._generate(prompt_ids, settings)
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:
            raise ModelError(f"peer {self.name}: {one_line(error)}") from error

    def _generate(self, prompt_ids: Sequence[int], settings: Any) -> Answer:
        streamer = _FirstToken()
        ids = torch.tensor([list(prompt_ids)], device=self.model.device)
        found = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=settings,
            streamer=streamer,
            assistant_model=self.assistance.assistant,
        )
        tokens = found[0, len(prompt_ids) :].tolist()
        wall_s = time.perf_counter() - streamer.start
        return Answer(Timing(wall_s, streamer.first_s, len(tokens), streamer.num_first), tuple(tokens))


def load_peers(names: Sequence[str], source: PeerSource, *, greedy: bool) -> list[Peer]:
    """Loads the requested peers. Raises ConfigError on an unknown name, ModelError if one cannot be
    loaded.
    """
    check_peers(names)
    if not names:
        return []
    model = _load(source.folder, source)
    kinds = {"transformers": Assistance(), "prompt-lookup": Assistance(lookup_tokens=LOOKUP_TOKENS)}
    if "assisted" in names:
        if source.assistant is None:
            raise ConfigError("peers", "assisted", "--assistant FOLDER, a small model of the same tokens")
        kinds["assisted"] = Assistance(_load(source.assistant, source))
    return [Peer(name, model, kinds[name], compared=greedy, threads=source.threads) for name in names]


def assistant_beside(target: Path, drafter: str) -> Path | None:
    """Returns the folder of a small autoregressive model: the drafter's if it is one, else `chain` next to
    the target.
    """
    for folder in (Path(drafter), target.resolve().parent / "chain"):
        if (folder / "config.json").is_file() and kind_of(read_config(folder)) == "chain":
            return folder
    return None


def _load(folder: Path, source: PeerSource) -> Any:
    from transformers import AutoModelForCausalLM

    require_folder(folder, "transformers")
    try:
        with _quiet():
            model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=source.dtype)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"transformers cannot load {folder.name}: {one_line(error)}") from error
    model = model.to(source.device).eval()
    # The model's own settings, such as an end of text, would apply to everything that a call does not set.
    model.generation_config = _generation_config()
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses progress bars and messages of transformers."""
    from transformers.utils import logging

    voice: Any = logging
    before, bars = voice.get_verbosity(), voice.is_progress_bar_enabled()
    voice.set_verbosity_error()
    voice.disable_progress_bar()
    try:
        yield
    finally:
        voice.set_verbosity(before)
        if bars:
            voice.enable_progress_bar()


def _settings(params: SamplingParams, lookup_tokens: int | None) -> Any:
    sampling = (
        {"do_sample": False}
        if params.is_greedy
        else {"do_sample": True, "temperature": params.temperature, "top_k": 0, "top_p": 1.0}
    )
    return _generation_config(
        max_new_tokens=params.max_tokens,
        min_new_tokens=params.max_tokens,
        use_cache=True,
        pad_token_id=0,
        prompt_lookup_num_tokens=lookup_tokens,
        **sampling,
    )


def _generation_config(**values: Any) -> Any:
    from transformers import GenerationConfig

    make: Any = GenerationConfig
    return make(**values)
