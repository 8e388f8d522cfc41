"""The life of a loaded model: with, close, the garbage collector, and the event loop's AsyncLLM."""

import asyncio
import gc
import threading
import weakref
from typing import Any

import pytest

from tests.engine.test_endings import load
from tests.equivalence.world import STRICT, World, is_clean
from wager.errors import RequestError, WagerError
from wager.llm import LLM, AsyncLLM
from wager.records import SamplingParams

TEXTS = ["The quick", "brown fox jumps over", "def main(argv):"]
SAMPLED = SamplingParams(max_tokens=20, temperature=0.8, seed=3)
LONG = SamplingParams(max_tokens=300, ignore_eos=True)


def engine_threads() -> int:
    gc.collect()  # models of other tests that nobody uses any more
    return sum(thread.name == "wager-engine" for thread in threading.enumerate())


def test_closing_frees_the_engine(speaking: World) -> None:
    before = engine_threads()
    with load(speaking, "chain", "fixed:3") as llm:
        llm.generate(TEXTS, SAMPLED)
        stream = llm.stream(TEXTS, LONG)
        next(stream)
        held = weakref.ref(llm.engine)
        pool = weakref.ref(llm.engine.runner.pool.store)
    assert engine_threads() == before
    with pytest.raises(WagerError, match="closed"):
        while True:
            next(stream)
    del stream
    gc.collect()
    assert held() is None and pool() is None
    uses: list[Any] = [
        lambda: llm.generate(TEXTS),
        lambda: next(iter(llm.stream(TEXTS))),
        lambda: llm.set_policy("ar"),
        lambda: llm.engine,
        lambda: llm.notes,
        lambda: llm.settle(),
    ]
    for use in uses:
        with pytest.raises(WagerError, match="closed"):
            use()
    llm.close()


def test_a_forgotten_model_ends_its_thread(speaking: World) -> None:
    before = engine_threads()
    llm = load(speaking)
    llm.generate(TEXTS, SAMPLED)
    held = weakref.ref(llm.engine)
    assert engine_threads() == before + 1
    del llm
    gc.collect()
    assert engine_threads() == before and held() is None


def test_a_call_in_another_thread_is_told_of_the_end(speaking: World) -> None:
    llm = load(speaking)
    begun = threading.Event()
    errors: list[BaseException] = []

    def read() -> None:
        try:
            for _ in llm.stream(TEXTS, LONG):
                begun.set()
        except WagerError as error:
            errors.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(60.0)
    llm.close()
    reader.join(60.0)
    assert "closed" in str(errors[0])


@pytest.fixture
def async_llm(speaking: World) -> AsyncLLM:
    values: dict[str, Any] = {**STRICT, "num_pages": 128, "page_size": 8}
    return AsyncLLM(speaking.target, speaking.chain, "fixed:4", **values)


def test_coroutines_give_what_threads_give(llm: LLM, async_llm: AsyncLLM) -> None:
    want = [output.token_ids for output in llm.generate(TEXTS, SAMPLED)]

    async def read() -> list[list[int]]:
        found: list[list[int]] = [[] for _ in TEXTS]
        async for event in async_llm.stream(TEXTS, sampling_params=SAMPLED):
            found[event.index] += event.token_ids
        return found

    async def run() -> None:
        async with async_llm:
            answers = [async_llm.generate(TEXTS, SAMPLED), async_llm.generate(TEXTS, sampling_params=SAMPLED)]
            first, second, third = await asyncio.gather(*answers, read())
            assert [[one.token_ids for one in found] for found in (first, second)] == [want, want]
            assert third == want
            several = SamplingParams(max_tokens=5, temperature=1.0, seed=1, n=2)
            (output,) = await async_llm.generate(TEXTS[0], several)
            assert len(output.outputs) == 2
            await async_llm.set_policy("ar")
            with pytest.raises(RequestError):
                await async_llm.generate([[10**6]], SAMPLED)
        with pytest.raises(WagerError, match="closed"):
            await async_llm.generate(TEXTS)

    asyncio.run(run())


def test_a_chat_on_the_loop(chat_llm: LLM, chatting: World) -> None:
    chat = [{"role": "user", "content": "Hello there"}]
    want = chat_llm.chat(chat, SAMPLED, enable_thinking=True)

    async def run() -> None:
        values: dict[str, Any] = {**STRICT, "num_pages": 64}
        async with AsyncLLM(chatting.target, None, "ar", **values) as llm:
            (output,) = await llm.chat(chat, SAMPLED, enable_thinking=True)
        assert (output.token_ids, output.prompt) == (want[0].token_ids, want[0].prompt)

    asyncio.run(run())


def test_cancelling_a_task_ends_its_requests(async_llm: AsyncLLM) -> None:
    async def run() -> None:
        task = asyncio.create_task(async_llm.generate(TEXTS, LONG))
        async for _ in async_llm.stream(TEXTS[0], LONG):
            break  # both calls run by now
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        never = asyncio.create_task(async_llm.generate(TEXTS, LONG))
        await asyncio.sleep(0)
        never.cancel()
        with pytest.raises(asyncio.CancelledError):
            await never
        await asyncio.get_running_loop().shutdown_asyncgens()
        assert async_llm._calls.ask(is_clean)
        async_llm._calls.ask(lambda engine: engine.check())
        assert len(await async_llm.generate(TEXTS, SAMPLED)) == len(TEXTS)
        await async_llm.close()

    asyncio.run(run())


def test_a_stream_that_is_left_ends_its_requests(async_llm: AsyncLLM) -> None:
    async def run() -> None:
        async with async_llm:
            stream = async_llm.stream(TEXTS, LONG)
            await anext(stream)
            await stream.aclose()
            assert async_llm._calls.ask(is_clean)

    asyncio.run(run())
