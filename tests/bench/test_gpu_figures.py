"""The arithmetic of the device's benchmarks: bytes, spans, batches, partings, options."""

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
import torch

from bench.gpu.all import SCRIPTS, read_settings
from bench.gpu.batch import MIXES, Done, batch_of, cell, lowest, order_of, rounds_of
from bench.gpu.exactness import compared_tokens, summed_up
from bench.gpu.floor import Streamed, drafter_bytes, target_bytes
from bench.gpu.grown import TINY_SHAPE, World, plan_pair
from bench.gpu.passes import bushy, pass_rows
from bench.gpu.profiled import Profile, covered, is_attention
from bench.gpu.script import read_value, run_one
from bench.gpu.steps import Watched, matched, mean_bet, step_figures
from bench.partings import Comparison, Parting
from wager.bench.records import Answer, Counts, Timing
from wager.errors import ConfigError
from wager.train.grow import reader_of


def test_a_pass_reads_every_tensor_but_the_embedding() -> None:
    plan = plan_pair(TINY_SHAPE, torch.float32)
    tensors = dict(reader_of(plan.target, plan).tensors())
    head = tensors["lm_head.weight"].nbytes
    read = sum(one.nbytes for one in tensors.values()) - tensors["model.embed_tokens.weight"].nbytes
    assert target_bytes(plan).weight_bytes == read
    assert plan.drafter is not None
    own = sum(one.nbytes for _, one in reader_of(plan.drafter, plan).tensors())
    assert drafter_bytes(plan).weight_bytes == own + head


def test_the_8b_shape_streams_what_an_8b_model_does() -> None:
    found = target_bytes(plan_pair("8b", torch.bfloat16))
    assert found.weight_bytes == pytest.approx(15.14e9, rel=1e-3)
    assert found.kv_bytes == 36 * 2 * 8 * 128 * 2
    assert Streamed(1000, 10).at(3) == 1030
    assert Streamed(1000, 10).limit_ms(100, 2e6) == pytest.approx(1.0)


def test_covered_counts_overlaps_once() -> None:
    assert covered([]) == 0.0
    assert covered([(5, 6), (0, 2), (1, 3), (1, 2)]) == 4.0


def test_attention_kernels_are_known_by_name() -> None:
    assert (
        is_attention("_attend") and is_attention("merge_after") and is_attention("flash_fwd_splitkv_kernel")
    )
    assert not is_attention("_add_norm") and not is_attention("nvjet_tst_64x8")


def test_a_timed_pass_has_one_root_and_a_branching_tree() -> None:
    (row,) = pass_rows(16, 100, 32)
    assert len(row.pending) + row.tree.num_nodes == 16 and len(row.pages) == 4
    row.tree.validate()
    assert not row.tree.is_chain and bushy(0).num_nodes == 0


def test_the_gap_is_what_the_device_does_not_use() -> None:
    found = step_figures(8.0, 6.0)
    assert (found["gap"], found["of_kernels"]) == (0.25, 0.75)


def answer_of(wall_ms: float, *bets: int) -> Answer:
    return Answer(Timing(wall_ms / 1e3, 0.0, len(bets)), (), Counts(steps=len(bets), bets=Counter(bets)))


def test_a_step_is_set_against_a_profile_whose_bets_are_the_most_alike() -> None:
    answers = [
        answer_of(12.0, 31, 31),
        answer_of(10.0, 15, 15),
        answer_of(10.6, 15, 15),
        answer_of(9.0, 0, 0),
    ]
    profiles = [
        Watched(counts, Profile({}, 1.0))
        for one in (answer_of(0.0, 63, 31), answer_of(0.0, 15, 16))
        if (counts := one.counts) is not None
    ]
    own, seen = matched(answers, profiles)
    assert mean_bet(seen.counts) == 15.5
    assert own is answers[2], "of two that bet alike, the one nearer to what most steps take"


def encoded() -> dict[str, list[list[int]]]:
    return {kind: [[kind_id] * 30, [kind_id + 1] * 20] for kind_id, kind in enumerate(MIXES["mixed"])}


@pytest.mark.parametrize("mix", MIXES)
def test_a_batch_holds_its_kinds_in_turn_and_no_prompt_twice(mix: str) -> None:
    asked = batch_of(encoded(), mix, range(8), 5, 0.8)
    kinds = MIXES[mix]
    assert [one.kind for one in asked] == [kinds[i % len(kinds)] for i in range(8)]
    seen = [(tuple(one.prompt_ids), one.params.temperature) for one in asked]
    assert len(set(seen)) == 8 or len(kinds) == 1
    heats = {one.params.temperature for one in asked}
    assert heats == ({0.0, 0.8} if mix == "half sampled" else {0.0})


def test_prompts_used_again_are_shorter() -> None:
    lengths = [len(one.prompt_ids) for one in batch_of(encoded(), "code", range(6), 5, 0.8)]
    assert lengths == [30, 20, 23, 13, 16, 8]
    with pytest.raises(ConfigError, match="mixes"):
        batch_of(encoded(), "poems", range(2), 5, 0.8)


def test_whoever_runs_first_takes_turns() -> None:
    names = ["ar", "auto", "fixed:15"]
    assert order_of(names, 0) == [*names, *reversed(names)]
    assert order_of(names, 1) == ["auto", "ar", "fixed:15", "fixed:15", "ar", "auto"]
    assert order_of(names, 2) == order_of(names, 0) and order_of(["ar"], 1) == ["ar", "ar"]
    both = [*order_of(names, 0), *order_of(names, 1)]
    behind = [name for last, name in pairwise(both) if last == "fixed:15" != name]
    assert sorted(behind) == ["ar", "auto"]


def test_small_batches_are_of_different_requests() -> None:
    assert rounds_of(64, 2) == [range(64), range(64)]
    assert rounds_of(16, 1) == [range(16)]
    assert rounds_of(4, 2) == [range(4), range(4, 8), range(8, 12), range(12, 16)]
    assert rounds_of(5, 5) == [*[range(start, start + 5) for start in (0, 5, 10, 15)], range(5)]
    parts = [one for places in rounds_of(4, 2) for one in batch_of(encoded(), "mixed", places, 5, 0.8)]
    assert parts == batch_of(encoded(), "mixed", range(16), 5, 0.8)


def done(wall_s: float, *ended: float, token: int = 1) -> Done:
    return Done(wall_s, list(ended), [[token] * 10 for _ in ended])


def test_late_steps_are_told() -> None:
    assert Done(1.0, [1.0], [[1]], [5.0, 5.1, 16.504, 4.9, 9.0]).late_ms == [16.5]
    assert done(1.0, 1.0).late_ms == []


def test_a_cell_compares_totals_and_the_slowest_request() -> None:
    found = cell(
        {"ar": [done(1.0, 1.0, 1.0), done(2.0, 2.0, 2.0)], "auto": [done(0.5, 0.25, 0.5, token=2)] * 2}
    )
    assert found["tokens_per_s"]["ar"] == pytest.approx(40 / 3.0)
    assert found["over_ar"]["auto"] == pytest.approx(40.0 / (40 / 3.0))
    assert found["slowest_over_mean"] == {"ar": 1.0, "auto": pytest.approx(20 / 30)}
    assert found["runs"]["ar"] == [20.0, 10.0]
    assert found["control"] == 2.0
    assert found["texts_like_ar"] == {"ar": 2, "auto": 0}
    worst = lowest([found, {"over_ar": {"auto": 0.9}, "slowest_over_mean": {"auto": 0.8}}])
    assert worst["lowest_over_ar"] == {"auto": 0.9}
    assert worst["lowest_slowest_over_mean"] == {"ar": 1.0, "auto": pytest.approx(20 / 30)}


def parting(position: int, gap: float) -> Parting:
    return Parting("code", "code/1", position, 3, 4, "a", "b", gap, False)


def test_texts_count_up_to_where_they_part() -> None:
    assert compared_tokens(40, 4, []) == 40
    assert compared_tokens(40, 4, [parting(0, 0.1), parting(9, 0.1)]) == 31
    found = Comparison()
    for one in (None, parting(4, 0.25), parting(9, 0.5), None):
        found.enter("code", 10, one)
    figures = summed_up(found)
    assert (figures["texts"], figures["identical"], figures["tokens_compared"]) == (4, 2, 35)
    assert figures["partings_per_1000_tokens"] == pytest.approx(2000 / 35)
    assert figures["gaps"] == {"median": 0.375, "largest": 0.5}
    assert summed_up(Comparison())["gaps"] is None


@pytest.mark.parametrize(
    ("default", "text", "value"),
    [
        (3, "4", 4),
        (1.5, "2", 2.0),
        ("a", "b", "b"),
        ((1, 2), "4,8", (4, 8)),
        (("ar",), "ar,auto", ("ar", "auto")),
    ],
)
def test_options_are_read_as_their_defaults_are_written(default: Any, text: str, value: Any) -> None:
    assert read_value(default, text) == value


def test_settings_reach_their_script() -> None:
    settings = read_settings(["pair.limit=2", "pair.max-tokens=64", "batch.batches=4,16"])
    assert SCRIPTS["pair"].chosen(settings["pair"], tiny=False).limit == 2
    assert SCRIPTS["pair"].chosen(settings["pair"], tiny=True).max_tokens == 64
    assert SCRIPTS["batch"].chosen(settings["batch"], tiny=False).batches == (4, 16)
    for word in ("pair.limit", "limit=2", "nobody.limit=2"):
        with pytest.raises(ConfigError, match="set"):
            read_settings([word])
    with pytest.raises(ConfigError, match="pair"):
        SCRIPTS["pair"].chosen({"limits": "2"}, tiny=False)


def test_a_script_writes_what_failed(tmp_path: Any) -> None:
    world = World(TINY_SHAPE, True, tmp_path)

    def run(own: World, options: object) -> None:
        own.save("floor", {}, {"half": 1})
        raise RuntimeError("cut")

    run_one(SCRIPTS["floor"]._replace(run=run), world, None)
    assert world.errors == [{"case": "floor", "error": "RuntimeError: cut"}]
    assert (tmp_path / "gpu_floor.json").exists()
