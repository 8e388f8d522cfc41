"""HOW ARE GUESSES ARRANGED AND JUDGED?

The reference truth, in numpy: what a tree of guesses is, which guesses come first, who sees whom in the
target's pass, which path stands, and the noise that makes sampling reproducible. Device code must equal it.
May import errors and records, and numpy; never torch, never policy.
Read `tree.py` first, then `accept.py` (the one rule), `build.py` (best first), `visibility.py` and `pack.py`.
"""

from wager.tree.accept import accept, accept_rows, accept_sampled, target_choice
from wager.tree.build import Forest, build_forest, one_tree, row_trees
from wager.tree.noise import derive_seed, gumbel, noise_bits
from wager.tree.pack import Packed, RowInput, pack
from wager.tree.tree import ROOT, Tree
from wager.tree.visibility import ancestor_mask, positions, row_mask

__all__ = [
    "ROOT",
    "Forest",
    "Packed",
    "RowInput",
    "Tree",
    "accept",
    "accept_rows",
    "accept_sampled",
    "ancestor_mask",
    "build_forest",
    "derive_seed",
    "gumbel",
    "noise_bits",
    "one_tree",
    "pack",
    "positions",
    "row_mask",
    "row_trees",
    "target_choice",
]
