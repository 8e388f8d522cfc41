"""Plain passes that are launched before the choices of the pass before have been read: the same texts.

Rows end by length or by themselves, requests are admitted, aborted and preempted while a pass is in flight.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.equivalence.kernel_engines import MARKS, engine_of, jobs
from tests.equivalence.world import Job, World, alone, drive, is_clean, prompt
from tests.nn.kernels import interpreter
from wager.engine.engine import Engine
from wager.engine.sequence import Finish
from wager.records import SamplingParams

pytestmark = MARKS
assert interpreter


def passes_behind(engine: Engine) -> list[tuple[int, int]]:
    """Collects the passes that are launched behind others: how many rows chose, and how many run."""
    run_behind, begun = engine.runner.run_behind, list[tuple[int, int]]()

    def counted(rows: Any, chosen: torch.Tensor, places: Any) -> Any:
        begun.append((len(chosen), len(rows)))
        return run_behind(rows, chosen, places)

    engine.runner.run_behind = counted  # type: ignore[method-assign]
    return begun


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_plain_passes_are_prelaunched(world: World, on_kernels: None, temperature: float) -> None:
    """Rows of other lengths, one that ends by itself, one that is aborted, one that comes late."""
    engine, plain = engine_of(world, "ar"), engine_of(world, "ar", kernels="off")
    asked = jobs(temperature)
    whole = alone(plain, asked)
    ending = replace(asked[1].params, stop_token_ids=(whole[1][4],), ignore_eos=False)
    shorter = replace(asked[2].params, max_tokens=6)
    named = [asked[0], replace(asked[1], params=ending), replace(asked[2], params=shorter)]
    begun = passes_behind(engine)
    late, gone = Job(asked[0].prompt[::-1], asked[0].params), Job(asked[1].prompt[::-1], asked[1].params)
    run = drive(engine, {0: [*enumerate(named), ("gone", gone)], 7: [("late", late)]}, {4: ["gone"]})
    found = [run.tokens(index) for index in range(3)]
    assert found == [whole[0], whole[1][: len(found[1])], whole[2][:6]] and len(found[1]) < 10
    assert run.tokens("late") == alone(plain, [late])[0]
    assert (4, 4) in begun and any(chose > left for chose, left in begun), "all went on; some had ended"
    assert is_clean(engine)


def test_a_plain_pass_is_launched_behind_the_end_of_a_prompt(world: World, on_kernels: None) -> None:
    """Behind the step that reads the prompts, and behind the one in which a late prompt is read."""
    engine, plain = engine_of(world, "ar"), engine_of(world, "ar", kernels="off")
    asked, late = jobs(0.0), Job(jobs(0.0)[0].prompt[::-1], jobs(0.0)[0].params)
    begun, tokens = passes_behind(engine), dict[Any, list[int]]()
    for index, job in enumerate(asked):
        engine.add(index, job.prompt, job.params)
    after = list[int]()
    for step in range(24):
        if step == 4:
            engine.add("late", late.prompt, late.params)
        for event in engine.step():
            tokens.setdefault(event.request_id, []).extend(event.token_ids)
        after.append(len(begun))
    assert after[0] == 1 and begun[0] == (3, 3), "the first step reads prompts"
    assert begun[after[3]] == (3, 4), "the late one is admitted to the pass that the fifth step launches"
    assert begun[after[4]] == (4, 4)
    assert [tokens[index] for index in (0, 1, 2, "late")] == alone(plain, [*asked, late])


def test_nothing_is_prelaunched_where_the_host_processes_scores(world: World, on_kernels: None) -> None:
    engine, plain = engine_of(world, "ar"), engine_of(world, "ar", kernels="off")
    begun = passes_behind(engine)
    for params in ({"logprobs": 2}, {"repetition_penalty": 1.3}):
        asked = jobs(0.0, **params)
        run = drive(engine, {0: list(enumerate(asked))}, {})
        assert [run.tokens(index) for index in range(3)] == alone(plain, asked)
    assert not begun


def change_to_drafting(engine: Engine, asked: Sequence[Job]) -> tuple[dict[Any, list[int]], int, int]:
    """Decodes plainly for five steps, then with drafts. Returns the texts and the passes launched behind
    others in both parts.
    """
    for index, job in enumerate(asked):
        engine.add(index, job.prompt, job.params)
    begun, tokens, before = passes_behind(engine), dict[Any, list[int]](), 0
    for step in range(40):
        if step == 5:
            engine.set_policy("tree:6")
            before = len(begun)
        for event in engine.step():
            tokens.setdefault(event.request_id, []).extend(event.token_ids)
    return tokens, before, len(begun) - before


@pytest.mark.parametrize(("num_first", "num_behind"), [(8, 0), (0, 1)])
def test_drafting_goes_on_behind_prelaunched_passes(
    world: World, on_kernels: None, monkeypatch: pytest.MonkeyPatch, num_first: int, num_behind: int
) -> None:
    """Features of such passes are kept: the drafter has seen all of the text when it is asked again.

    Many rows are asked once the next pass is launched, so that one plain pass more is launched.
    """
    monkeypatch.setattr("wager.engine.prelaunch.plain.ASKED_FIRST", num_first)
    engine, plain = engine_of(world, "ar"), engine_of(world, "ar", kernels="off")
    asked = jobs(0.0)
    tokens, before, behind = change_to_drafting(engine, asked)
    assert before and behind == num_behind and engine.telemetry.verified > 0
    assert [tokens[index] for index in range(3)] == alone(plain, asked)
    assert is_clean(engine)


def host_launches_of(engine: Engine) -> list[int]:
    """Collects the number of rows of every pass that is launched with the verdict of the one before."""
    run, found = engine.runner.run, list[int]()

    def counted(rows: Any) -> Any:
        found.append(len(rows))
        return run(rows)

    engine.runner.run = counted  # type: ignore[method-assign]
    return found


def closed_loop(engine: Engine, asked: Sequence[Job], places: int) -> dict[Any, list[int]]:
    """Serve the jobs, as many at a time as there are places; a new one is added when one ends."""
    waiting, tokens = deque(enumerate(asked)), dict[Any, list[int]]()
    for _ in range(places):
        index, job = waiting.popleft()
        engine.add(index, job.prompt, job.params)
    while engine.has_work:
        for event in engine.step():
            tokens.setdefault(event.request_id, []).extend(event.token_ids)
            if event.finish is not None and waiting:
                index, job = waiting.popleft()
                engine.add(index, job.prompt, job.params)
    return tokens


def load(count: int, length: int = 9) -> list[Job]:
    """Requests of different lengths, every second one sampled."""
    return [
        Job(
            prompt(index, length + 3 * (index % 3), period=5),
            SamplingParams(
                max_tokens=4 + 3 * (index % 4), temperature=0.9 * (index % 2), seed=index, ignore_eos=True
            ),
        )
        for index in range(count)
    ]


def plain_texts(world: World, asked: Sequence[Job]) -> list[list[int]]:
    """What plain torch writes for each job by itself."""
    return alone(engine_of(world, "ar", kernels="off"), asked)


def test_in_a_closed_loop_no_pass_waits_for_a_verdict(world: World, on_kernels: None) -> None:
    """Requests are admitted to passes behind others, so that the host launches only the first pass itself."""
    engine, asked = engine_of(world, "ar"), load(7)
    behind, by_host = passes_behind(engine), host_launches_of(engine)
    tokens = closed_loop(engine, asked, 3)
    assert [tokens[index] for index in range(7)] == plain_texts(world, asked)
    assert by_host == [3] and is_clean(engine)
    assert any(rows > chosen for chosen, rows in behind), "a request was admitted behind a pass"


def test_places_that_become_free_by_length_are_filled(world: World, on_kernels: None) -> None:
    """More requests than rows: whoever waits takes the place of a row that reaches its length limit."""
    engine, asked = engine_of(world, "ar", max_rows=2), load(5)
    by_host = host_launches_of(engine)
    run = drive(engine, {0: list(enumerate(asked))}, {})
    assert [run.tokens(index) for index in range(5)] == plain_texts(world, asked)
    order = list(dict.fromkeys(event.request_id for event in run.events))
    assert order == [0, 1, 2, 3, 4] and by_host == [2] and is_clean(engine)


@pytest.mark.parametrize("step", [2, 3, 4])
def test_a_request_is_aborted_around_its_admission(world: World, on_kernels: None, step: int) -> None:
    """While it waits, while its prompt is in flight, and behind that: the others do not notice."""
    engine, asked = engine_of(world, "ar"), load(3)
    run = drive(engine, {0: list(enumerate(asked[:2])), 2: [("gone", asked[2])]}, {step: ["gone"]})
    own = plain_texts(world, asked)
    assert [run.tokens(index) for index in range(2)] == own[:2]
    assert run.tokens("gone") == own[2][: len(run.tokens("gone"))]
    assert run.last("gone").finish is Finish.ABORT and is_clean(engine)


def test_prompts_are_read_in_chunks_behind_plain_rows(world: World, on_kernels: None) -> None:
    """Chunks that end no prompt are prelaunched too, and the rows beside them go on."""
    engine, asked = engine_of(world, "ar", prefill_chunk=8), [*load(2, length=7), *load(1, length=29)]
    asked = [replace(job, params=replace(job.params, max_tokens=10)) for job in asked]
    by_host = host_launches_of(engine)
    run = drive(engine, {0: list(enumerate(asked[:2])), 3: [(2, asked[2])]}, {})
    assert [run.tokens(index) for index in range(3)] == plain_texts(world, asked)
    assert len(by_host) == 1 and is_clean(engine)


def test_large_prompts_have_passes_that_score_judged_tokens_only(world: World, on_kernels: None) -> None:
    engine = engine_of(world, "ar", max_step_tokens=400, prefill_chunk=400)
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    asked = [Job(prompt(index, length), params) for index, length in enumerate((7, 150, 140))]
    sizes = list[int]()
    runner: Any = engine.runner
    prefill_of = runner._sizes.prefill_of

    def noted(*args: int) -> Any:
        size = prefill_of(*args)
        sizes.append(0 if size is None else size.tokens)
        return size

    runner._sizes.prefill_of = noted
    run = drive(engine, {0: [(0, asked[0])], 1: [(1, asked[1]), (2, asked[2])]}, {})
    assert [run.tokens(index) for index in range(3)] == plain_texts(world, asked)
    assert sizes == [384] and is_clean(engine)


def test_prefixes_are_found_though_admission_is_early(world: World, on_kernels: None) -> None:
    """A request whose beginning is being read waits a step for it instead of reading it again."""
    engine = engine_of(world, "ar")
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    first = prompt(1, 20)
    asked = [Job(prompt(2, 6), params), Job(first, params), Job([*first, 3, 4], params)]
    joins = {0: [(0, asked[0])], 2: [(1, asked[1])], 3: [(2, asked[2])]}
    run = drive(engine, joins, {})
    assert [run.tokens(index) for index in range(3)] == plain_texts(world, asked)
    reused = [getattr(run.last(index).sequence, "num_reused", None) for index in range(3)]
    assert reused == [0, 0, 16] and is_clean(engine)


def test_pages_that_run_out_are_taken_with_the_verdict(world: World, on_kernels: None) -> None:
    """No sequence is preempted behind a pass: such steps are planned when the verdict is known."""
    engine = engine_of(world, "ar", num_pages=8, prefix_reuse=False)
    params = SamplingParams(max_tokens=14, ignore_eos=True)
    asked = [Job(prompt(index, 9), params) for index in range(4)]
    run = drive(engine, {0: list(enumerate(asked))}, {})
    assert [run.tokens(index) for index in range(4)] == plain_texts(world, asked)
    assert engine.scheduler.num_preemptions and is_clean(engine)


def test_a_failing_prelaunch_costs_the_requests_of_its_step(world: World, on_kernels: None) -> None:
    engine, asked = engine_of(world, "ar"), load(3)
    run_behind, calls = engine.runner.run_behind, list[int]()

    def failing(rows: Any, chosen: torch.Tensor, places: Any) -> Any:
        calls.append(len(rows))
        if len(calls) == 3:
            raise RuntimeError("injected")
        return run_behind(rows, chosen, places)

    engine.runner.run_behind = failing  # type: ignore[method-assign]
    run = drive(engine, {0: list(enumerate(asked[:2])), 6: [(2, asked[2])]}, {})
    assert [run.last(index).finish for index in range(3)] == [Finish.ERROR, Finish.ERROR, Finish.LENGTH]
    assert [run.tokens(2)] == plain_texts(world, asked[2:]) and is_clean(engine)
