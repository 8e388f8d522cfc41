"""Plain decoding written a second time, from the definition: transformers' scores, loops, no engine.

Every token is chosen over the whole text anew. Used by tests to judge how a token is chosen; shares with the
package only the recipe of the noise.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from wager.records import SamplingParams
from wager.tree.noise import gumbel

Scores = npt.NDArray[np.float64]


def raw_scores(model: Any, tokens: list[int]) -> Scores:
    """The model's scores behind the last token, in its own number format."""
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0, -1].double().numpy()


def processed(scores: Scores, tokens: list[int], num_prompt: int, params: SamplingParams) -> Scores:
    """Penalties and bias, token by token."""
    found = scores.copy()
    written = Counter(tokens[num_prompt:])
    for token in range(len(found)):
        if token in tokens and params.repetition_penalty != 1.0:
            by = params.repetition_penalty
            found[token] = found[token] * by if found[token] < 0 else found[token] / by
        if written[token]:
            found[token] -= params.presence_penalty + params.frequency_penalty * written[token]
        found[token] += (params.logit_bias or {}).get(token, 0.0)
    return found


def kept_tokens(scores: Scores, params: SamplingParams) -> set[int]:
    """Tokens that top-k, then top-p, then min-p leave, `scores` being scaled by the temperature."""
    order = sorted(range(len(scores)), key=lambda token: -scores[token])
    if params.top_k:
        order = order[: params.top_k]
    weights = softmax(scores[order])
    if params.top_p < 1.0:
        before = np.concatenate([[0.0], np.cumsum(weights)[:-1]])
        order = [token for token, mass in zip(order, before, strict=True) if mass < params.top_p]
        weights = softmax(scores[order])
    return {t for t, weight in zip(order, weights, strict=True) if weight >= params.min_p * weights[0]}


def softmax(scores: Scores) -> Scores:
    powers = np.exp(scores - scores.max())
    return np.asarray(powers / powers.sum())


def choices(model: Any, prompt: list[int], params: SamplingParams) -> Iterator[tuple[int, Scores]]:
    """Token after token, with the raw scores it was chosen from."""
    tokens = list(prompt)
    for _ in range(params.max_tokens):
        raw = raw_scores(model, tokens)
        token = choice_of(raw, tokens, len(prompt), params)
        yield token, raw
        tokens.append(token)


def choice_of(
    raw: Scores,
    tokens: list[int],
    num_prompt: int,
    params: SamplingParams,
    allowed: npt.NDArray[np.bool_] | None = None,
) -> int:
    """The next token; `allowed`: by a grammar, before anything else is filtered."""
    scores = processed(raw, tokens, num_prompt, params)
    if allowed is not None:
        scores = np.where(allowed, scores, -np.inf)
    if params.temperature > 0:
        scores = scores / params.temperature
        kept = kept_tokens(scores, params)
        noised = scores + gumbel(params.seed or 0, len(tokens), len(scores))
        scores = np.array([noised[t] if t in kept else -np.inf for t in range(len(scores))])
    return int(scores.argmax())
