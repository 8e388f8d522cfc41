"""What the demo pair reaches on held-out texts: the target's loss, and tokens per step of the full block.

    python -m bench.pair --texts FILE.jsonl.xz [--limit N] [--rows 8]

Per kind: nats per token and per character; then the beginnings of the texts (400 characters) are continued by
128 tokens, greedy and at 0.8 with shared noise, every step verifying the drafter's whole block as a chain.
Steps that begin outside a repeated 8-gram also count apart: a text that loops is easy to guess.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch

from bench.results import RESULTS, write_result
from wager import LLM, SamplingParams
from wager.pairs import DEMO_FOLDER
from wager.text.repetition import repeated_share, repeating
from wager.train.heldout import evenly, losses, read_heldout

PROMPT_CHARACTERS, NUM_OUTPUT, BLOCK = 400, 128, 15


@dataclass
class Told:
    """What the steps of one kind at one temperature emitted."""

    steps: list[int] = field(default_factory=list)
    fresh: list[int] = field(default_factory=list)
    """Of steps that do not begin in a repetition."""
    outputs: list[list[int]] = field(default_factory=list)

    def add(self, prompt_ids: Sequence[int], emitted: Sequence[int], output: Sequence[int]) -> None:
        loops = repeating(np.array([*prompt_ids, *output]))
        place = len(prompt_ids) + emitted[0]
        # The first token of a request comes with its prompt, before any draft.
        for count in emitted[1:]:
            self.steps.append(count)
            if not loops[place]:
                self.fresh.append(count)
            place += count
        self.outputs.append(list(output))

    def figures(self) -> dict[str, Any]:
        depths = [sum(count > d for count in self.steps) for d in range(BLOCK + 1)]
        return {
            "texts": len(self.outputs),
            "tokens_per_step": sum(self.steps) / len(self.steps),
            "tokens_per_step_not_repeating": sum(self.fresh) / max(len(self.fresh), 1),
            "share_not_repeating": len(self.fresh) / len(self.steps),
            "by_depth": [round(b / a, 3) if a else 0.0 for a, b in pairwise(depths)],
            "repeated_8grams": repeated_share(np.array(self.outputs)),
        }


def tell(llm: LLM, texts: Sequence[str], temperature: float) -> Told:
    """Continue the texts, one after the other or in batches, and note what every step emitted."""
    params = [
        SamplingParams(max_tokens=NUM_OUTPUT, temperature=temperature, seed=1000 + i, ignore_eos=True)
        for i in range(len(texts))
    ]
    emitted: dict[int, list[int]] = {}
    told = Told()
    for event in llm.stream([text[:PROMPT_CHARACTERS] for text in texts], params):
        if event.token_ids:
            emitted.setdefault(event.index, []).append(len(event.token_ids))
        if event.output is not None:
            told.add(event.output.prompt_ids, emitted.pop(event.index), event.output.token_ids)
    return told


def heldout_losses(texts: dict[str, list[str]]) -> dict[str, dict[str, float]]:
    from transformers import Qwen3ForCausalLM

    folder = DEMO_FOLDER / "target"
    model: Any = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return losses(model, tokenizer, texts, 0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument(
        "--limit", type=int, default=0, help="texts of each kind to continue, evenly chosen; 0: all"
    )
    parser.add_argument("--rows", type=int, default=8, help="requests that run at once")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, default=RESULTS / "pair.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    texts = read_heldout(options.texts)
    found: dict[str, Any] = {"heldout_loss": heldout_losses(texts), "drafter": {}}
    for kind, own in found["heldout_loss"].items():
        print(kind, json.dumps({name: round(value, 3) for name, value in own.items()}), flush=True)
    llm = LLM("demo", "demo/drafter", f"fixed:{BLOCK}", max_rows=options.rows, threads=options.threads)
    for kind, own in texts.items():
        chosen = evenly(own, options.limit)
        for temperature in (0.0, 0.8):
            figures = tell(llm, chosen, temperature).figures()
            found["drafter"][f"{kind}_t{temperature:g}"] = figures
            shown = {name: round(value, 3) for name, value in figures.items() if name != "by_depth"}
            print(kind, temperature, json.dumps(shown), flush=True)
    settings = {"limit": options.limit, "rows": options.rows, "prompt_characters": PROMPT_CHARACTERS}
    write_result("pair", settings | {"num_output": NUM_OUTPUT, "block": BLOCK + 1}, found, options.json)


if __name__ == "__main__":
    main()
