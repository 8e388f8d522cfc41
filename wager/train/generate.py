"""Text written by the target itself, many rows at once, for training and evaluating a drafter.

It is a plain batched sampler over a transformers model with a growing cache, without speculation and paging.
With `seeds` it uses the same counter-based noise as the engine, so the rows equal those of the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wager.nn.noise import NoiseSource


class Written(NamedTuple):
    """Rows [B, T]: prompts of different lengths followed by `num_output` tokens each, padded at the end."""

    tokens: Tensor
    num_prompt: Tensor


@torch.inference_mode()
def write_rows(
    model: Any,
    prompts: Sequence[Sequence[int]],
    num_output: int,
    temperature: float = 0.0,
    seeds: Sequence[int] | None = None,
) -> Written:
    """Continues every prompt by exactly `num_output` tokens. Without seeds, torch draws the samples."""
    device = next(model.parameters()).device
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    longest = int(lengths.max())
    padded = torch.zeros(len(prompts), longest, dtype=torch.long, device=device)
    mask = torch.zeros(len(prompts), longest, dtype=torch.long, device=device)
    for row, prompt in enumerate(prompts):  # left padding, so that all rows end together
        padded[row, longest - len(prompt) :] = torch.tensor(prompt, device=device)
        mask[row, longest - len(prompt) :] = 1
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    even = bool(
        (lengths == longest).all()
    )  # without padding no mask is needed, which is several times as fast
    source, places = None, []
    if temperature > 0 and seeds is not None:
        source = NoiseSource(model.config.vocab_size, device)
        places = list(zip(seeds, lengths.tolist(), strict=True))
    out = model(
        padded,
        attention_mask=None if even else mask,
        position_ids=positions,
        use_cache=True,
        logits_to_keep=1,
    )
    written = []
    for step in range(num_output):
        noise = None if source is None else source.rows([(seed, length + step) for seed, length in places])
        chosen = _choose(out.logits[:, -1].float(), temperature, noise)
        written.append(chosen)
        if step + 1 == num_output:
            break
        mask = torch.cat((mask, mask.new_ones(len(prompts), 1)), dim=1)
        out = model(
            chosen[:, None],
            attention_mask=None if even else mask,
            position_ids=(lengths + step)[:, None],
            past_key_values=out.past_key_values,
            use_cache=True,
        )
    return _aligned(padded, lengths, torch.stack(written, dim=1))


def _choose(scores: Tensor, temperature: float, noise: Tensor | None) -> Tensor:
    if temperature == 0.0:
        return scores.argmax(dim=-1)
    if noise is not None:
        return (scores / temperature + noise.to(scores)).argmax(dim=-1)
    return torch.multinomial((scores / temperature).softmax(dim=-1), 1)[:, 0]


def _aligned(padded: Tensor, lengths: Tensor, written: Tensor) -> Written:
    """Moves the padding from the front of each row to its end."""
    longest, total = padded.shape[1], padded.shape[1] + written.shape[1]
    rows = torch.cat((padded, written), dim=1)
    shift = longest - lengths
    places = torch.arange(total, device=rows.device) + shift[:, None]
    aligned = rows.gather(1, places.clamp(max=total - 1))
    return Written(torch.where(places < total, aligned, 0), lengths)
