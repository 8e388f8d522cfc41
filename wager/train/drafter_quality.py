"""The quality of a drafter on texts that its target wrote after held-out prompts.

At every position of these texts the drafter offers guesses as at run time: with the target's own noise if the
text was sampled. The result is tokens per step of the full block and acceptance by depth. drafter_training.py
calls this during training and at its end; heldout.py does the same by kind, for a file and the demo pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from wager.nn.models.dflash_net import DFlashNet
from wager.train.acceptance import Rows, acceptance_by_depth, offered, tokens_per_step
from wager.train.teacher import FolderTeacher
from wager.train.texts import Text

_ROWS_AT_ONCE = 16


@dataclass(frozen=True)
class Measured:
    """The figures of the texts of one temperature."""

    temperature: float
    num_texts: int
    num_tokens: int
    tokens_per_step: float
    by_depth: list[float]
    """Share of accepted guesses at each depth, among those whose predecessors were all accepted."""
    kind: str = ""
    """The kind of the texts; empty if they are of all kinds."""


def measure(
    net: DFlashNet, teacher: FolderTeacher, texts: Sequence[Text], device: torch.device
) -> list[Measured]:
    """Returns one record per temperature among the texts, greedy first."""
    was_training = net.training
    net.eval()
    try:
        found = []
        for temperature in sorted({text.temperature for text in texts}):
            own = [text for text in texts if text.temperature == temperature and text.output_ids]
            if own:
                found.append(_measure(net, teacher, own, device))
        return found
    finally:
        net.train(was_training)


def _measure(net: DFlashNet, teacher: FolderTeacher, texts: Sequence[Text], device: torch.device) -> Measured:
    ranks: list[npt.NDArray[np.int8]] = []
    for start in range(0, len(texts), _ROWS_AT_ONCE):
        ranks += _ranks(net, teacher, texts[start : start + _ROWS_AT_ONCE], device)
    num_tokens = sum(len(own) for own in ranks)
    num_steps = sum(len(own) / tokens_per_step(own[None]) for own in ranks)
    return Measured(
        texts[0].temperature,
        len(texts),
        num_tokens,
        num_tokens / num_steps,
        [round(rate, 4) for rate in acceptance_by_depth(np.concatenate(ranks))],
    )


def _ranks(
    net: DFlashNet, teacher: FolderTeacher, texts: Sequence[Text], device: torch.device
) -> list[npt.NDArray[np.int8]]:
    """Returns for each text the ranks [output tokens, depths] of the true tokens, -1 if not offered."""
    num_output = max(len(text.output_ids) for text in texts)
    width = max(len(text.prompt_ids) for text in texts) + num_output
    tokens = torch.zeros(len(texts), width, dtype=torch.long, device=device)
    for row, text in enumerate(texts):
        tokens[row, : len(text.token_ids)] = torch.tensor(text.token_ids, device=device)
    num_prompt = torch.tensor([len(text.prompt_ids) for text in texts], device=device)
    seeds = [text.seed for text in texts]
    rows = Rows(tokens, num_prompt, num_output, texts[0].temperature, seeds)
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        seen = offered(net, teacher, rows, num_ranks=1).ranks
    places = np.arange(num_output)[:, None] + np.arange(seen.shape[-1])
    # A text may end before the others of its batch; positions after its end are not compared.
    return [
        np.where(places < len(text.output_ids), seen[row], -1)[: len(text.output_ids)].astype(np.int8)
        for row, text in enumerate(texts)
    ]
