"""How much texts repeat themselves."""

import numpy as np
import pytest

from wager.text.repetition import repeated_share, repeating


def test_repeated_share_counts_within_rows() -> None:
    assert repeated_share(np.array([[1, 2, 3, 4, 5]]), 2) == 0.0
    assert repeated_share(np.array([[1, 2, 1, 2, 1]]), 2) == pytest.approx(2 / 4)
    assert repeated_share(np.array([[1, 2, 3], [1, 2, 3]]), 2) == 0.0
    assert repeated_share(np.array([[7] * 10]), 4) == pytest.approx(6 / 7)
    assert repeated_share(np.array([[1, 2]]), 8) == 0.0
    assert repeated_share([[1, 2, 1, 2, 1], [1, 2]], 2) == pytest.approx(2 / 5), "rows of different lengths"
    assert repeated_share([]) == 0.0


def test_repeating_marks_the_last_token_of_a_repeated_gram() -> None:
    assert repeating([1, 2, 3, 1, 2, 3], 3).tolist() == [False] * 5 + [True]
