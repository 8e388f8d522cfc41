"""The acceptance rule: which path of a tree is accepted.

The walk starts at the root. While a child carries the token that the target chose at the current node, the
walk moves to this child. The target's choice after the last node is the bonus token. So the text is the
target's own, for greedy decoding and for sampling. The rule does not use draft probabilities. The device
version in `target/verify.py` is tested against it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from wager.errors import InputError
from wager.records import Verdict
from wager.tree.tree import ROOT, Int64Array, Tree

NoiseFn = Callable[[int], npt.NDArray[np.floating]]


def accept(tree: Tree, target_tokens: npt.ArrayLike) -> Verdict:
    """Judges a tree; target_tokens[0] is the target's choice after the root, and [1 + i] after node i."""
    tokens = np.asarray(target_tokens, np.int64)
    if tokens.shape != (tree.num_nodes + 1,):
        raise InputError(
            f"need {tree.num_nodes + 1} for {tree.num_nodes} nodes, got {tokens.shape}", field="target_tokens"
        )
    choices: list[int] = tokens.tolist()
    return _walk(tree, choices.__getitem__)


def accept_sampled(
    tree: Tree,
    logits: npt.NDArray[np.floating],
    temperature: float,
    noise_fn: NoiseFn,
    root_position: int,
) -> Verdict:
    """Judges a tree by the target's logits [n + 1, vocab]; a choice after depth d has position root + d + 1.

    `noise_fn(position)` returns the noise [vocab] of an absolute position; greedy decoding does not call it.
    """
    if logits.ndim != 2 or logits.shape[0] != tree.num_nodes + 1:
        raise InputError(f"need [{tree.num_nodes + 1}, vocab], got {logits.shape}", field="logits")
    depths = [0, *tree.depths.tolist()]

    def choose(index: int) -> int:
        noise = noise_fn(root_position + depths[index] + 1) if temperature > 0 else None
        return int(target_choice(logits[index], temperature, noise))

    return _walk(tree, choose)


def target_choice(
    logits: npt.NDArray[np.floating], temperature: float, noise: npt.NDArray[np.floating] | None
) -> Int64Array:
    """Returns argmax(logits / T + noise) over the last axis, or argmax(logits) if T is 0. Ties go to the
    lower id.
    """
    if temperature == 0:
        return np.asarray(np.argmax(logits, axis=-1), np.int64)
    if not temperature > 0 or noise is None:
        raise InputError(f"need 0, or a positive number with noise; got {temperature}", field="temperature")
    return np.asarray(np.argmax(logits.astype(np.float64) / temperature + noise, axis=-1), np.int64)


def _walk(tree: Tree, choose: Callable[[int], int]) -> Verdict:
    # A child comes after its parent, so one pass over the nodes follows the whole path.
    parents: list[int] = tree.parents.tolist()
    guesses: list[int] = tree.token_ids.tolist()
    path: list[int] = []
    here, wanted = ROOT, choose(0)
    for node, parent in enumerate(parents):
        if parent == here and guesses[node] == wanted:
            path.append(node)
            here, wanted = node, choose(node + 1)
    return Verdict(
        accepted=tuple(guesses[node] for node in path),
        path=tuple(path),
        target_token=wanted,
        num_drafted=len(parents),
        first_rejection=len(path) if here in parents else None,
    )
