"""The one rule against enumeration, and against plain decoding over whole texts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tree.strategies import hashed_logits, hashed_token, trees
from wager.errors import InputError
from wager.records import Verdict
from wager.tree import ROOT, Tree, accept, accept_sampled, gumbel, target_choice

VOCAB_SIZE = 4


def longest_true_path(tree: Tree, targets: list[int]) -> list[int]:
    """Among all nodes whose whole path is what the target chose, the deepest; the first one where equal."""
    best: list[int] = []
    for node in range(tree.num_nodes):
        nodes = tree.nodes_to(node)
        before = [ROOT, *nodes[:-1]]
        stands = all(tree.token_ids[n] == targets[b + 1] for b, n in zip(before, nodes, strict=True))
        if stands and len(nodes) > len(best):
            best = nodes
    return best


def distinct_siblings(tree: Tree) -> bool:
    keys = list(zip(tree.parents.tolist(), tree.token_ids.tolist(), strict=True))
    return len(set(keys)) == len(keys)


@settings(deadline=None, max_examples=150)
@given(trees(vocab_size=3).filter(distinct_siblings), st.lists(st.integers(0, 2), min_size=13, max_size=13))
def test_accept_equals_enumeration(tree: Tree, targets: list[int]) -> None:
    targets = targets[: tree.num_nodes + 1]
    verdict = accept(tree, targets)
    path = longest_true_path(tree, targets)
    last = path[-1] if path else ROOT
    assert verdict == Verdict(
        accepted=tuple(tree.token_ids[path].tolist()),
        path=tuple(path),
        target_token=targets[last + 1],
        num_drafted=tree.num_nodes,
        first_rejection=len(path) if last in tree.parents.tolist() else None,
    )


@settings(deadline=None, max_examples=80)
@given(st.lists(st.integers(0, 1), max_size=8), st.lists(st.integers(0, 1), min_size=9, max_size=9))
def test_a_chain_keeps_its_longest_agreeing_prefix(guesses: list[int], truth: list[int]) -> None:
    verdict = accept(Tree.chain(guesses), truth[: len(guesses) + 1])
    agreed = 0
    while agreed < len(guesses) and guesses[agreed] == truth[agreed]:
        agreed += 1
    assert verdict.emitted == tuple(truth[: agreed + 1])
    assert verdict.num_accepted == agreed
    assert verdict.first_rejection == (None if agreed == len(guesses) else agreed)


def test_of_equal_siblings_the_first_stands() -> None:
    tree = Tree.of([1, 1, 2], [ROOT, ROOT, 1])
    verdict = accept(tree, [1, 2, 2, 3])
    assert (verdict.path, verdict.emitted, verdict.first_rejection) == ((0,), (1, 2), None)


def test_plain_decoding_emits_the_bonus() -> None:
    assert accept(Tree.empty(), [9]) == Verdict((), (), 9, 0, None)


def test_wrong_number_of_choices_is_refused() -> None:
    with pytest.raises(InputError, match="target_tokens"):
        accept(Tree.chain([1]), [1])
    with pytest.raises(InputError, match="logits"):
        accept_sampled(Tree.chain([1]), np.zeros((1, 4)), 0.0, lambda _: np.zeros(4), 0)


@settings(deadline=None, max_examples=30)
@given(st.lists(trees(vocab_size=VOCAB_SIZE), min_size=1, max_size=30), st.integers(0, 10**6))
def test_emitted_text_is_plain_greedy_text(offers: list[Tree], start: int) -> None:
    text = [start]
    for tree in offers:
        contexts = [text, *(text + tree.path_to(node) for node in range(tree.num_nodes))]
        text.extend(accept(tree, [hashed_token(context, VOCAB_SIZE) for context in contexts]).emitted)
    plain = [start]
    while len(plain) < len(text):
        plain.append(hashed_token(plain, VOCAB_SIZE))
    assert text == plain


@settings(deadline=None, max_examples=30)
@given(
    st.lists(trees(max_nodes=6, vocab_size=VOCAB_SIZE), min_size=1, max_size=10),
    st.integers(0, 2**64 - 1),
    st.sampled_from([0.0, 0.5, 1.0, 1.7]),
)
def test_sampled_text_does_not_depend_on_guessing(offers: list[Tree], seed: int, temperature: float) -> None:
    def noise(position: int) -> np.ndarray:
        return gumbel(seed, position, VOCAB_SIZE)

    text = [0]
    for tree in offers:
        contexts = [text, *(text + tree.path_to(node) for node in range(tree.num_nodes))]
        logits = np.stack([hashed_logits(context, VOCAB_SIZE) for context in contexts])
        text.extend(accept_sampled(tree, logits, temperature, noise, len(text) - 1).emitted)
    plain = [0]
    while len(plain) < len(text):
        choice = target_choice(hashed_logits(plain, VOCAB_SIZE), temperature, noise(len(plain)))
        plain.append(int(choice))
    assert text == plain


def test_target_choice_over_leading_axes() -> None:
    logits = np.array([[0.0, 1.0], [3.0, 2.9]], np.float32)
    noise = np.array([[0.0, 0.0], [0.0, 1.0]])
    assert target_choice(logits, 0.0, None).tolist() == [1, 0]
    assert target_choice(logits, 1.0, noise).tolist() == [1, 1]
    assert target_choice(logits, 0.05, noise).tolist() == [1, 0]
    assert int(target_choice(np.zeros(3), 0.0, None)) == 0


@pytest.mark.parametrize("temperature", [-1.0, float("nan"), 1.0])
def test_impossible_temperatures_are_refused(temperature: float) -> None:
    with pytest.raises(InputError, match="temperature"):
        target_choice(np.zeros(3), temperature, None)
