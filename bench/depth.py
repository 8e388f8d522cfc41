"""What guesses are worth by the length of the context: tokens per step behind 256 to 7,680 tokens.

    python -m bench.depth [--model smollm2] [--contexts 256,1024,4096,7680] [--policy fixed:11] [--tokens 96]

The context is a conversation about the shipped questions: the model's own answers stand before the question
that is measured, as many as fit. Every context length is measured with the same questions, greedily.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from bench.results import write_result
from wager.bench.suites import load_suite
from wager.errors import WagerError
from wager.llm import LLM
from wager.records import SamplingParams

Messages = list[dict[str, str]]


def make_history(llm: LLM, questions: Sequence[str], length: int, max_tokens: int) -> Messages:
    """Answers the questions in turn until the conversation has about `length` tokens."""
    found: Messages = []
    number = 0
    while count_tokens(llm, found) < length - max_tokens:
        question = {"role": "user", "content": questions[number % len(questions)]}
        own = [
            *found[-6:],
            question,
        ]  # the answer is made from a few turns, or long contexts would take hours
        answer = llm.chat(own, SamplingParams(max_tokens=max_tokens, temperature=0.7, seed=number))[0]
        found += [question, {"role": "assistant", "content": answer.text}]
        number += 1
    return found


def count_tokens(llm: LLM, messages: Messages) -> int:
    assert llm.chat_template is not None
    tokenizer = llm.engine.parts.tokenizer
    assert tokenizer is not None
    return len(tokenizer.encode(llm.chat_template.render(messages), add_special=False)) if messages else 0


def measure(llm: LLM, history: Messages, questions: Sequence[str], tokens: int) -> dict[str, Any]:
    """Tokens per step of the answers to some questions behind this history."""
    steps, emitted, accepted = 0, 0, [0] * 16
    for question in questions:
        messages = [*history, {"role": "user", "content": question}]
        output = llm.chat(messages, SamplingParams(max_tokens=tokens))[0]
        steps += output.stats.steps
        emitted += len(output.token_ids)
        for depth, count in enumerate(output.stats.histogram):
            accepted[min(depth, 15)] += count
    return {
        "context": count_tokens(llm, history),
        "steps": steps,
        "tokens": emitted,
        "tokens_per_step": emitted / max(steps, 1),
        "accepted_histogram": accepted,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.depth",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--contexts", default="256,1024,2048,4096,7680")
    parser.add_argument("--policy", default="fixed:11")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--questions", type=int, default=5)
    given = parser.parse_args(arguments)
    lengths = [int(word) for word in given.contexts.split(",")]
    texts = [prompt.text for prompt in load_suite("instruct")]
    found: list[dict[str, Any]] = []
    with LLM(given.model, policy=given.policy) as llm:
        llm.settle(print)
        whole = make_history(llm, texts[::-1], max(lengths), given.tokens)
        for length in lengths:
            history = list(whole)
            while history and count_tokens(llm, history) > length:
                history = history[2:]  # the oldest turns go, so that the latest are the same everywhere
            cell = measure(llm, history, texts[: given.questions], given.tokens)
            print({key: value for key, value in cell.items() if key != "accepted_histogram"}, flush=True)
            found.append(cell)
    path = write_result("depth", vars(given), {"cells": found})
    print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except WagerError as error:
        sys.exit(f"bench.depth: {error}")
