"""Callers side by side: threads, nested and abandoned streams, consumers that fail, interrupts, forks."""

import contextlib
import gc
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.test_endings import load
from tests.equivalence.world import World, is_clean
from wager.engine.sequence import Sequence
from wager.engine.thread import EngineThread
from wager.errors import WagerError
from wager.llm import LLM, Output
from wager.llm.calls import Call
from wager.records import SamplingParams

TEXTS = ["The quick", "brown fox jumps over", "def main(argv):", "42 pages", "It was", "a b c d"]
PARAMS = [SamplingParams(max_tokens=20 + i, temperature=0.2 * i, seed=i) for i in range(len(TEXTS))]
LONG = SamplingParams(max_tokens=300, ignore_eos=True)
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def alone(llm: LLM) -> list[list[int]]:
    """The tokens of each text by itself."""
    return [llm.generate(text, own)[0].token_ids for text, own in zip(TEXTS, PARAMS, strict=True)]


def in_threads(functions: list[Callable[[], Any]]) -> list[Any]:
    found: list[Any] = [None] * len(functions)

    def run(place: int) -> None:
        try:
            found[place] = functions[place]()
        except BaseException as error:
            found[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)
    return found


def tokens(outputs: list[Output]) -> list[list[int]]:
    return [output.token_ids for output in outputs]


def settled(llm: LLM) -> bool:
    """Whether nothing is left of any request."""
    llm._calls.ask(lambda engine: engine.check())
    return is_clean(llm.engine) and not llm.engine.has_work and not llm._calls._calls


def test_threads_share_one_engine(llm: LLM, alone: list[list[int]]) -> None:
    rows = []
    llm.engine.telemetry.listener = lambda report: rows.append(report.num_rows)

    def ask() -> list[list[int]]:
        return [*tokens(llm.generate(TEXTS, PARAMS)), *tokens(llm.generate(TEXTS, PARAMS))]

    def read() -> list[list[int]]:
        found: list[list[int]] = [[] for _ in TEXTS]
        for event in llm.stream(TEXTS, PARAMS):
            found[event.index] += event.token_ids
        return found

    asked = in_threads([ask, ask, read, read])
    llm.engine.telemetry.listener = None
    assert asked == [alone * 2, alone * 2, alone, alone]
    assert max(rows) > len(TEXTS), "the calls did not run together"
    assert settled(llm)


def test_a_refused_call_does_not_touch_the_others(llm: LLM, alone: list[list[int]]) -> None:
    def ask() -> list[list[int]]:
        return tokens(llm.generate(TEXTS, PARAMS))

    def refused() -> object:
        return llm.generate([[1, 2], [10**6]], LONG)

    first, second, third = in_threads([ask, refused, ask])
    assert first == third == alone
    assert isinstance(second, WagerError) and "token id" in str(second)
    assert settled(llm)


def test_two_models_in_one_process(speaking: World, world: World, llm: LLM, alone: list[list[int]]) -> None:
    other = load(world, "chain", "tree:5")
    params = SamplingParams(max_tokens=40)
    (want,) = other.generate([1, 2, 3], params)
    streams = [llm.stream(TEXTS[0], PARAMS[0]), other.stream([1, 2, 3], params)]
    found: list[list[int]] = [[], []]
    for _ in range(50):
        for place, stream in enumerate(streams):
            found[place] += event.token_ids if (event := next(stream, None)) is not None else ()
    assert found == [alone[0], want.token_ids]
    asked = in_threads(
        [lambda: tokens(llm.generate(TEXTS, PARAMS)), lambda: tokens(other.generate([1, 2, 3], params))]
    )
    assert asked == [alone, [want.token_ids]]


def test_calls_inside_a_stream(llm: LLM, alone: list[list[int]]) -> None:
    found: list[int] = []
    for number, event in enumerate(llm.stream(TEXTS[5], PARAMS[5])):
        found += event.token_ids
        if number < 3:
            assert tokens(llm.generate(TEXTS[:3], PARAMS[:3])) == alone[:3]
            inner = [token for one in llm.stream(TEXTS[4], PARAMS[4]) for token in one.token_ids]
            assert inner == alone[4]
    assert found == alone[5] and settled(llm)


def test_an_abandoned_stream_ends_its_requests(llm: LLM, alone: list[list[int]]) -> None:
    stream = llm.stream(TEXTS, LONG)
    next(stream)
    assert not settled(llm)
    del stream
    gc.collect()
    assert settled(llm)
    forgotten = llm.stream(TEXTS[0], PARAMS[0])
    next(forgotten)
    assert tokens(llm.generate(TEXTS, PARAMS)) == alone
    forgotten.close()
    assert settled(llm)


def test_an_exception_in_the_consumer(llm: LLM, alone: list[list[int]]) -> None:
    with pytest.raises(ZeroDivisionError), contextlib.closing(llm.stream(TEXTS, LONG)) as stream:  # type: ignore[type-var]
        for event in stream:
            _ = 1 // (len(event.token_ids) * 0)
    assert settled(llm)
    assert tokens(llm.generate(TEXTS, PARAMS)) == alone


@pytest.mark.parametrize("step", [1, 2, 7])
def test_ctrl_c(llm: LLM, alone: list[list[int]], step: int) -> None:
    """The signal arrives while the engine is inside a step; the main thread is the one that gets it."""
    run, left = llm.engine.runner.run, [step]

    def interrupted(rows: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return run(rows)

    llm.engine.runner.run = interrupted  # type: ignore[method-assign]
    try:
        with pytest.raises(KeyboardInterrupt):
            llm.generate(TEXTS, LONG)
    finally:
        llm.engine.runner.run = run  # type: ignore[method-assign]
    assert settled(llm)
    assert tokens(llm.generate(TEXTS, PARAMS)) == alone


def test_a_fork_gets_an_error(llm: LLM, alone: list[list[int]]) -> None:
    stream = llm.stream(TEXTS[0], LONG)
    next(stream)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = "nothing was raised"
        try:
            signal.alarm(int(PATIENCE_S))
            stream.close()
            llm.generate(TEXTS[0], PARAMS[0])
        except WagerError as error:
            said = str(error)
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    assert "another process" in said and "spawn" in said
    stream.close()
    assert tokens(llm.generate(TEXTS, PARAMS)) == alone


def test_short_requests_leave_nothing_behind(llm: LLM) -> None:
    def held() -> tuple[int, int, int]:
        gc.collect()
        everything = gc.get_objects()
        of_requests = sum(type(one) in (Sequence, Call, Output) for one in everything)
        return of_requests, len(everything), llm.engine.scheduler.memory.allocator.num_used

    def ask(times: int) -> None:
        for i in range(times):
            if i % 3:
                llm.generate(TEXTS[i % len(TEXTS)], SamplingParams(max_tokens=2))
            else:
                list(llm.stream([40 + i % 7, 50], SamplingParams(max_tokens=2, temperature=1.0)))

    ask(60)
    before = held()
    ask(500)
    after = held()
    assert after[0] == before[0]
    assert after[1] < before[1] + 2000, "objects were kept for every request"
    assert after[2] <= before[2] + 4, "pages beyond what prefixes hold"
    assert settled(llm)


def test_a_failed_thread_is_reported(speaking: World) -> None:
    llm = load(speaking)

    def fail() -> Any:
        raise ValueError("broken for this test")

    llm.engine.step = fail  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(WagerError, match="broken for this test"):
            llm.generate("x")


def test_everybody_is_answered_when_a_thread_ends() -> None:
    ended = []
    thread = EngineThread(lambda _events, _ms: None, ended.append)
    waiting = thread.submit(lambda: 1)

    def refuse() -> Any:
        raise ValueError("no weights")

    with pytest.raises(ValueError, match="no weights"):
        thread.start(refuse).result()
    for future in (waiting, thread.submit(lambda: 2)):
        with pytest.raises(WagerError, match="no weights"):
            future.result(PATIENCE_S)
    assert ended == ["no weights"]


def test_who_pauses_the_engine_never_waits_for_it(llm: LLM, alone: list[list[int]]) -> None:
    stream = llm.stream(TEXTS[0], PARAMS[0])
    next(stream)
    assert tokens(llm.generate(TEXTS, PARAMS)) == alone  # the stream's request ends meanwhile, unread
    with llm._calls.paused():
        stream.close()
        with pytest.raises(WagerError, match="something else"):
            llm.generate(TEXTS[0], PARAMS[0])
    assert settled(llm)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_whatever_a_function_raises_goes_to_its_caller(llm: LLM, error: type[BaseException]) -> None:
    def fail(_engine: object) -> None:
        raise error

    with pytest.raises(error):
        llm._calls.ask(fail)
    assert settled(llm)
