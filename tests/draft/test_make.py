"""Which drafter a name or a folder stands for."""

import json
from pathlib import Path

import pytest

from tests.draft.pair import Face
from tests.nn.tiny import drafter_config, save_drafter, save_target
from wager.draft import DRAFTERS, DraftSource, make_drafter
from wager.draft.base import DraftRow, PoolShape
from wager.draft.block import BlockDrafter
from wager.draft.chain import ChainDrafter
from wager.errors import ConfigError, DrafterError, ModelError
from wager.nn.noise import NoiseSource

SHAPE = PoolShape(8, 4)
METHODS = ("can_propose", "propose", "keep", "prepare_sharing", "adopt", "forget", "describe")


def test_kinds_by_name() -> None:
    assert make_drafter(None, Face(), SHAPE).name == make_drafter("none", Face(), SHAPE).name == "none"
    lookup = make_drafter("lookup", Face(), SHAPE, DraftSource(depth=3, max_match=4))
    assert lookup.describe() == {"drafter": "lookup", "depth": 3, "min_match": 2, "max_match": 4}


def test_no_drafter_has_no_guess() -> None:
    drafter, row = make_drafter(None, Face(), SHAPE), DraftRow(0, [1, 2, 1, 2], 1, [])
    assert not drafter.can_propose(row)
    assert drafter.propose([row, row], NoiseSource(4)) == [None, None]
    assert drafter.prepare_sharing(0, [], 4)


def test_a_folder_tells_its_kind(tmp_path: Path) -> None:
    save_drafter(tmp_path / "block")
    save_target(tmp_path / "chain", "llama")
    block = make_drafter(tmp_path / "block", Face(), SHAPE, DraftSource(ranks=3))
    assert isinstance(block, BlockDrafter)
    assert (block.options.known_tokens, block.options.ranks) == (1, 3)
    assert block.feature_layers == (0, 2)
    chain = make_drafter(str(tmp_path / "chain"), Face(), SHAPE, DraftSource(depth=2))
    assert isinstance(chain, ChainDrafter) and chain.options.depth == 2
    for drafter in (block, chain):
        assert drafter.name in DRAFTERS and all(callable(getattr(drafter, name)) for name in METHODS)


def test_what_a_block_folder_records_is_used(tmp_path: Path) -> None:
    own = drafter_config()["dflash_config"] | {"max_known_tokens": 4, "block_lengths": [4]}
    save_drafter(tmp_path, dflash_config=own)
    recorded = make_drafter(tmp_path, Face(), SHAPE)
    assert isinstance(recorded, BlockDrafter)
    assert recorded.options.known_tokens == 4 and recorded.options.block_lengths == (4,)
    told = make_drafter(tmp_path, Face(), SHAPE, DraftSource(known_tokens=2))
    assert isinstance(told, BlockDrafter) and told.options.known_tokens == 2


@pytest.mark.parametrize("values", [{"max_known_tokens": 0}, {"max_known_tokens": "2"}, {"block_lengths": 4}])
def test_a_bad_record_is_refused_by_field(tmp_path: Path, values: dict[str, object]) -> None:
    save_drafter(tmp_path, dflash_config=drafter_config()["dflash_config"] | values)
    with pytest.raises(ModelError, match=next(iter(values))):
        make_drafter(tmp_path, Face(), SHAPE)


def test_what_is_no_drafter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DrafterError, match="guesser"):
        make_drafter("guesser", Face(), SHAPE)
    with pytest.raises(DrafterError, match="folder"):
        make_drafter("block", Face(), SHAPE)
    with pytest.raises(ConfigError, match="depth"):
        make_drafter("lookup", Face(), SHAPE, DraftSource(depth=0))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vision"}), encoding="utf-8")
    with pytest.raises(ModelError, match="vision"):
        make_drafter(tmp_path, Face(), SHAPE)
