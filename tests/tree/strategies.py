"""Random trees, drafts and targets for the tests of this folder."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from wager.tree import Tree


@st.composite
def trees(draw: st.DrawFn, max_nodes: int = 12, vocab_size: int = 4) -> Tree:
    """Any tree, equal siblings included: the rule must not depend on their absence."""
    num_nodes = draw(st.integers(0, max_nodes))
    parents = [draw(st.integers(-1, node - 1)) for node in range(num_nodes)]
    tokens = [draw(st.integers(0, vocab_size - 1)) for _ in range(num_nodes)]
    return Tree.of(tokens, parents)


def hashed_token(prefix: Sequence[int], vocab_size: int) -> int:
    """A deterministic target: the next token is a hash of all tokens before it."""
    digest = hashlib.blake2b(",".join(map(str, prefix)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % vocab_size


def hashed_logits(prefix: Sequence[int], vocab_size: int) -> np.ndarray:
    seed = hashed_token([*prefix, -7], 2**32)
    return np.random.default_rng(seed).normal(size=vocab_size) * 2.0
