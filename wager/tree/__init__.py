"""HOW ARE GUESSES ARRANGED AND JUDGED?

The numpy reference for speculative trees: the tree itself, the best-first order of guesses, the attention
mask of a verify pass, the acceptance rule, and the noise that makes sampling reproducible. Device code is
tested against it. May import errors and records, and numpy; never torch, never policy. Read `tree.py` first,
then `accept.py` (the acceptance rule), `build.py` (best-first order) and `visibility.py`.
"""

from wager.tree.accept import accept, accept_sampled, target_choice
from wager.tree.build import Forest, build_forest, one_tree, row_trees
from wager.tree.noise import derive_seed, gumbel, noise_bits
from wager.tree.tree import ROOT, Tree
from wager.tree.visibility import ancestor_mask, row_mask

__all__ = [
    "ROOT",
    "Forest",
    "Tree",
    "accept",
    "accept_sampled",
    "ancestor_mask",
    "build_forest",
    "derive_seed",
    "gumbel",
    "noise_bits",
    "one_tree",
    "row_mask",
    "row_trees",
    "target_choice",
]
