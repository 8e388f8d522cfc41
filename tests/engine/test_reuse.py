"""Pages and guesses that pay: prompt lookup on text that repeats, shared prefixes, chunked prompts, choice of
drafters by row.
"""

from pathlib import Path

import pytest

from tests.equivalence.world import Job, Run, World, alone, drive, is_clean, make_engine, make_world, prompt
from wager.records import SamplingParams

LONG = 1000
TAIL = 13


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A world with room for long prompts."""
    folder: Path = tmp_path_factory.mktemp("roomy")
    return make_world(folder, seed=1, max_position_embeddings=2048)


@pytest.mark.parametrize("policy", ["fixed:8", "auto"])
def test_lookup_copies_more_than_two_tokens_a_step(world: World, policy: str) -> None:
    # This prompt's greedy continuation runs into a loop: what a model does with text it copies.
    job = Job(prompt(2, 15), SamplingParams(max_tokens=200))
    (want,) = alone(make_engine(world), [job])
    run = drive(make_engine(world, "lookup", policy), {0: [("copy", job)]}, {})
    assert run.tokens("copy") == want
    stats = run.last("copy").sequence.stats
    assert stats.tokens_per_step > 2 and stats.emitted / len(run.reports) > 2


def shape_of(run: Run) -> list[tuple[int, int]]:
    """Nodes and accepted guesses of the steps behind the prompt."""
    return [(report.num_nodes, report.accepted) for report in run.reports if report.emitted][1:]


@pytest.mark.parametrize("drafter", ["block", "chain"])
def test_a_shared_prefix_is_computed_once_and_guessed_from_as_well(roomy: World, drafter: str) -> None:
    shared = prompt(7, LONG)
    first = Job([*shared, 1, 2, 3], SamplingParams(max_tokens=8))
    second = Job([*shared, *prompt(8, TAIL)], SamplingParams(max_tokens=40))
    warm, cold = (make_engine(roomy, drafter, "fixed:4", page_size=32, num_pages=128) for _ in range(2))
    drive(warm, {0: [("first", first)]}, {})
    hit = drive(warm, {0: [("second", second)]}, {})
    miss = drive(cold, {0: [("second", second)]}, {})
    reused = LONG // 32 * 32
    assert hit.last("second").sequence.num_reused == reused
    assert prompt_tokens(hit) == LONG + TAIL - reused
    assert prompt_tokens(miss) == LONG + TAIL
    assert hit.tokens("second") == miss.tokens("second")
    assert shape_of(hit) == shape_of(miss) and sum(nodes for nodes, _ in shape_of(hit)) > 20


def prompt_tokens(run: Run) -> int:
    """Tokens of the prompt in passes: all up to the first emission, without nodes."""
    first = next(i for i, report in enumerate(run.reports) if report.emitted)
    return sum(report.num_tokens - report.num_nodes for report in run.reports[: first + 1])


@pytest.mark.parametrize("chunk", [1, 5, 16, 33])
@pytest.mark.parametrize("drafter", ["none", "block", "chain"])
def test_a_prompt_in_chunks_is_the_same_prompt(world: World, drafter: str, chunk: int) -> None:
    jobs = [Job(prompt(i, 40), SamplingParams(max_tokens=20, temperature=0.6 * i, seed=i)) for i in range(2)]
    want = alone(make_engine(world), jobs)
    engine = make_engine(world, drafter, "tree:6", prefill_chunk=chunk, prefix_reuse=False)
    run = drive(engine, {0: list(enumerate(jobs))}, {})
    assert [run.tokens(i) for i in range(2)] == want
    # A fed token is fed once, whatever the chunks: the prompt and all but the last emitted token.
    assert sum(report.num_tokens - report.num_nodes for report in run.reports) <= 2 * (40 + 19)


def test_each_row_has_the_drafter_that_can(world: World) -> None:
    """A block drafter cannot guess behind a whole prompt; lookup beside it can, where the prompt repeats."""
    jobs = [Job(prompt(i, 16, period=4), SamplingParams(max_tokens=24)) for i in range(3)]
    engine = make_engine(world, "block", "fixed:4")
    assert list(engine.drafters) == ["block", "lookup"]
    run = drive(engine, {0: enumerate(jobs[:2]), 3: [(2, jobs[2])]}, {})
    assert [run.tokens(i) for i in range(3)] == alone(make_engine(world), jobs)
    mixed = [set(report.drafters) for report in run.reports]
    assert {"block", "lookup"} in mixed and {"block"} in mixed


def test_auto_learns_which_drafter_pays(world: World) -> None:
    """The block drafter here is random; on text that loops lookup is right, and auto must find that out."""
    job = Job(prompt(2, 15), SamplingParams(max_tokens=300))
    run = drive(make_engine(world, "block", "auto"), {0: [("a", job)]}, {})
    late = [name for report in run.reports[len(run.reports) // 2 :] for name in report.drafters]
    assert late.count("lookup") > late.count("block")
    assert run.tokens("a") == alone(make_engine(world), [job])[0]


def test_preempted_requests_come_back_to_what_they_had(world: World) -> None:
    jobs = [Job(prompt(i, 20), SamplingParams(max_tokens=30)) for i in range(4)]
    engine = make_engine(world, "block", "fixed:3", num_pages=20, page_size=4)
    run = drive(engine, {0: list(enumerate(jobs))}, {})
    assert engine.scheduler.num_preemptions > 0 and is_clean(engine)
    assert [run.tokens(i) for i in range(4)] == alone(make_engine(world), jobs)
    back = [run.last(i).sequence for i in range(4) if run.last(i).sequence.num_preemptions]
    assert back and all(sequence.num_reused % 4 == 0 for sequence in back)


@pytest.mark.parametrize("drafter", ["none", "block", "chain"])
def test_a_row_that_took_over_pages_still_lies_on_one_run(roomy: World, drafter: str) -> None:
    """On a CPU scattered pages are gathered in every layer of every pass: one copy on arrival is cheaper."""
    shared = prompt(7, 64)
    engine = make_engine(roomy, drafter, "fixed:4", page_size=8, num_pages=128)
    want = drive(engine, {0: [("first", Job([*shared, 5], SamplingParams(max_tokens=30)))]}, {})
    engine.add("second", [*shared, 5], SamplingParams(max_tokens=30))
    engine.step()
    sequence = engine.scheduler.find("second")
    assert sequence is not None and sequence.num_reused == 64
    assert sequence.pages == list(range(sequence.pages[0], sequence.pages[0] + len(sequence.pages)))
    tokens = list(sequence.tokens)
    while engine.has_work:
        engine.step()
    assert sequence.output_ids == want.tokens("first") and tokens == sequence.tokens[: len(tokens)]
    engine.check()
