"""How often a guess agrees with the target's own draw: shared noise against the other ways to guess.

For every position of sampled texts, with the target's and the drafter's exact distributions there:

    shared       both take argmax(logits / T + the same noise), over many seeds   what Wager does
    greedy       the drafter's likeliest token is the guess                       target_probs[argmax draft]
    independent  the drafter draws on its own                                     sum of target * draft
    classical    accept with min(1, target / draft), as speculative sampling does sum of min(target, draft)

and, as a check of `shared`, the share of guesses that the engine itself accepted at depth 1 (a little lower:
where guessing is hard it takes more steps). Without folders it runs on a small random target and copies of it
disturbed more and more.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from bench.results import write_result
from wager.kvcache.pool import KVPool, slot_ids
from wager.llm import LLM
from wager.nn.batch import PassBatch, PassRow
from wager.nn.models import load_target
from wager.records import SamplingParams
from wager.tree.noise import gumbel

TEMPERATURES = (0.5, 0.8, 1.0)
NUM_TEXTS, TEXT_LEN, NUM_SEEDS = 16, 64, 64
DISTURBANCES = (0.01, 0.02, 0.05)
VOCAB = 64
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "eos_token_id": None,
}


class Acceptance(NamedTuple):
    """Chance that a guess for the next token stands, by the way of guessing."""

    shared: float
    greedy: float
    independent: float
    classical: float
    engine: float
    """Accepted / verified guesses of the engine with one guess a step: shared noise at work."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", help="model folder; default: a small random one")
    parser.add_argument("--drafter", help="folder of an autoregressive drafter")
    parser.add_argument("--out", help="where the result goes; default: bench/results/sampling.json")
    given = parser.parse_args(arguments)
    if given.target and not given.drafter:
        parser.error("--target needs --drafter")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        named: dict[str, tuple[str, str]] = {"given": (given.target, given.drafter)}
        pairs = named if given.target else small_pairs(Path(scratch))
        rows = [
            {"pair": name, "temperature": temperature} | measure(*pair, temperature)._asdict()
            for name, pair in pairs.items()
            for temperature in TEMPERATURES
        ]
    for row in rows:
        print(
            "  ".join(
                f"{key} {value:.3f}" if isinstance(value, float) else str(value) for key, value in row.items()
            )
        )
    config = {"texts": NUM_TEXTS, "tokens": TEXT_LEN, "seeds": NUM_SEEDS, "dtype": "float32"}
    print("written to", write_result("sampling", config, rows, given.out).name)


def small_pairs(folder: Path) -> dict[str, tuple[str, str]]:
    """A random target, and drafters that are copies of it with noise on every weight."""
    target = _random_model()
    target.save_pretrained(folder / "target")
    pairs = {}
    for size in DISTURBANCES:
        near = _random_model()
        torch.manual_seed(1)
        with torch.no_grad():
            for weight in near.parameters():
                weight.add_(torch.randn_like(weight) * size)
        near.save_pretrained(folder / f"near-{size}")
        pairs[f"disturbed by {size}"] = (str(folder / "target"), str(folder / f"near-{size}"))
    return pairs


def _random_model() -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(**SIZES)).eval()


def measure(target: str, drafter: str, temperature: float) -> Acceptance:
    """All figures of one pair at one temperature."""
    llm = LLM(target, drafter, "fixed:1", "float32", "cpu", num_pages=512, page_size=16, threads=1)
    vocab = llm.engine.runner.vocab_size
    params = [
        SamplingParams(max_tokens=TEXT_LEN, temperature=temperature, seed=seed, ignore_eos=True)
        for seed in range(NUM_TEXTS)
    ]
    rng = np.random.default_rng(0)
    outputs = llm.generate(rng.integers(0, vocab, (NUM_TEXTS, 8)).tolist(), params)
    accepted, drafted = (sum(getattr(o.stats, name) for o in outputs) for name in ("accepted", "drafted"))
    texts = [output.prompt_ids + output.token_ids for output in outputs]
    target_scores = np.concatenate([scores(target, text) for text in texts]) / temperature
    draft_scores = np.concatenate([scores(drafter, text) for text in texts]) / temperature
    exact = offline(target_scores, draft_scores[:, :vocab])
    return exact._replace(engine=accepted / drafted)


def offline(target_scores: np.ndarray, draft_scores: np.ndarray) -> Acceptance:
    """The four ways over positions [positions, vocab]; shared noise is averaged over seeds."""
    target_probs, draft_probs = _softmax(target_scores), _softmax(draft_scores)
    guess = draft_probs.argmax(-1)
    agree = []
    for seed in range(NUM_SEEDS):
        noise = gumbel(seed, np.arange(len(target_scores)), target_scores.shape[1])
        agree.append((target_scores + noise).argmax(-1) == (draft_scores + noise).argmax(-1))
    return Acceptance(
        float(np.mean(agree)),
        float(target_probs[np.arange(len(guess)), guess].mean()),
        float((target_probs * draft_probs).sum(-1).mean()),
        float(np.minimum(target_probs, draft_probs).sum(-1).mean()),
        float("nan"),
    )


@torch.inference_mode()
def scores(folder: str, tokens: list[int]) -> np.ndarray:
    """A model's scores behind every written token of a text, [tokens, vocab]."""
    decoder = load_target(folder, "float32", "cpu", "out_in")
    pages = list(range(-(-len(tokens) // 16)))
    pool = KVPool(decoder.pool_spec(len(pages), 16))
    slots = torch.from_numpy(slot_ids(pages, 16, 0, len(tokens)))
    positions = torch.arange(len(tokens))
    batch = PassBatch(torch.tensor(tokens), positions, slots, [PassRow(0, len(tokens), 0, pages)])
    hidden = decoder.forward(batch, pool, ()).hidden[-TEXT_LEN - 1 : -1]
    return np.asarray(decoder.logits(hidden).double().numpy())


def _softmax(values: np.ndarray) -> np.ndarray:
    powers = np.exp(values - values.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


if __name__ == "__main__":
    main()
