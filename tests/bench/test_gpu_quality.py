"""Scores of narrow weights: known distributions, and a small pair in 8 and 4 bits."""

import math
from pathlib import Path

import pytest
import torch

from bench.gpu.grown import TINY_SHAPE, BenchSession
from bench.gpu.quality import (
    FULL,
    Options,
    Scored,
    load_kind,
    mean_score,
    quality_rows,
    score,
    score_text,
)


def test_scores_of_known_distributions() -> None:
    full = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]]))
    assert score_text(full, full, [0, 1]) == pytest.approx(Scored(1.0, math.log(2.0), 0.0, 2))
    own = torch.log(torch.tensor([[0.25, 0.5, 0.25], [0.25, 0.5, 0.25]]))
    found = score_text(own, full, [0, 1])
    assert found.agreement == 0.5
    assert found.nats == pytest.approx(1.5 * math.log(2.0))
    assert found.divergence == pytest.approx(0.125 * math.log(2.0))


def test_means_are_weighted_by_tokens() -> None:
    mean = mean_score([Scored(1.0, 2.0, 0.0, 1), Scored(0.0, 6.0, 4.0, 3)])
    assert mean == Scored(0.25, 5.0, 3.0, 4)
    rows = quality_rows({FULL: {"a": [Scored(1.0, 1.0, 0.0, 2)]}, "int8": {"a": [Scored(0.5, 1.5, 0.1, 2)]}})
    assert rows["int8"]["a"]["nats_more"] == pytest.approx(0.5)
    assert rows["int8"]["all"]["agreement"] == 0.5 and rows[FULL]["all"]["nats_more"] == 0.0


def test_fewer_bits_diverge_more_from_full_width(tmp_path: Path) -> None:
    session = BenchSession(TINY_SHAPE, True, tmp_path)
    session.__dict__["prompts"] = [one for one in session.prompts if one.kind == "code"][:1]
    session.__dict__["device"] = torch.device("cpu")
    engines = {kind: load_kind(session, kind) for kind in (FULL, "int8", "int4")}
    found = score(session, engines, Options(limit=1, max_tokens=6, piece=4, control_piece=3))
    table = {name: row["code"] for name, row in quality_rows(found).items()}
    assert table[FULL]["agreement"] == table["control"]["agreement"] == 1.0
    assert table[FULL]["divergence"] == 0.0 and table["control"]["divergence"] < 1e-5
    assert 1e-6 < table["int8"]["divergence"] < 0.1 * table["int4"]["divergence"]
