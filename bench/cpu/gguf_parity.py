"""A GGUF target against transformers on the same dequantised weights: scores, and greedy texts.

    python -m bench.cpu.gguf_parity MODEL.gguf [--prompts 50] [--max-tokens 128]

The config is the one that transformers reads from the file, and the weights are dequantised by the gguf
package (of the extra `dev`), so that nothing rests on Wager's own reader. Scores are compared at every
position of every prompt: in float64, natively with every rounding of activations, and in plain torch. The
file also has what float32 costs transformers itself, against its own float64. Texts of every rounding are
compared token by token; where two part, the file has the gap of transformers' two best scores there, which
must be a near-tie for activations in full. Exit status 1 where it is not, or where scores in float64 differ
by more than the tolerance.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bench.results import write_result
from wager.bench.runs import encode
from wager.bench.suites import load_suite
from wager.bench.ties import NEAR
from wager.kvcache.pool import KVPool
from wager.llm import LLM
from wager.nn.batch import PassBatch, PassRow
from wager.nn.models import load_target
from wager.nn.models.decoder import Decoder
from wager.nn.native.loader import PassOptions
from wager.records import SamplingParams

TOLERANCE = 1e-4
ROUNDINGS = ("full", "int16", "int8")
"""Values of the setting `activations`."""
ROWS = 10
"""Prompts that transformers continues together."""


class Parting(NamedTuple):
    """Where a text left that of transformers."""

    id: str
    position: int
    gap: float
    near_tie: bool


class Apart(NamedTuple):
    """How far scores lie from wanted ones."""

    any_position: float = 0.0
    """The largest difference at any position of the prompts."""
    last_position: float = 0.0
    """The largest difference at their last positions."""
    nats: float = 0.0
    """The sum over positions of what is lost if these probabilities stand for the wanted ones."""
    other_best: int = 0
    """Positions with another best token."""

    def with_scores(self, found: Tensor, wanted: Tensor) -> Apart:
        difference = (found - wanted).abs()
        logs, others = wanted.double().log_softmax(-1), found.double().log_softmax(-1)
        return Apart(
            max(self.any_position, float(difference.max())),
            max(self.last_position, float(difference[-1].max())),
            self.nats + float((logs.exp() * (logs - others)).sum()),
            self.other_best + int((found.argmax(-1) != wanted.argmax(-1)).sum()),
        )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    found = compare(options.model, options.prompts, options.max_tokens)
    config = {"model": options.model.name, "prompts": options.prompts, "max_tokens": options.max_tokens}
    print(found)
    print(write_result("gguf_parity", config, found, options.out))
    return 0 if found["passed"] else 1


@torch.inference_mode()
def compare(path: Path, count: int, max_tokens: int) -> dict[str, Any]:
    """Returns all differences of scores and texts."""
    reference = load_reference(path)
    llms = {name: LLM(str(path), drafter=None, native="on", activations=name) for name in ROUNDINGS}
    for llm in llms.values():
        llm.settle(lambda text: print(text, file=sys.stderr))
    encoded = encode(llms["full"], load_suite("demo")[:count], max_tokens)
    names, ids = [one.prompt.id for one in encoded], [one.token_ids for one in encoded]
    scores = compare_scores(reference, {name: llms[name].engine.runner.decoder for name in llms}, path, ids)
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    theirs = [
        text
        for at in range(0, len(ids), ROWS)
        for text in continued(reference, ids[at : at + ROWS], max_tokens)
    ]
    texts: dict[str, Any] = {}
    for name, llm in llms.items():
        own = [output.token_ids for output in llm.generate(ids, params)]
        partings = [parting(reference, *parts) for parts in zip(names, ids, own, theirs, strict=True)]
        real = [one._asdict() for one in partings if one is not None]
        texts[name] = {"identical": len(own) - len(real), "partings": real}
    return {
        "passed": scores["float64"].any_position <= TOLERANCE
        and all(one["near_tie"] for one in texts["full"]["partings"]),
        "layouts": {name: str(llm.engine.runner.decoder.layout) for name, llm in llms.items()},
        "positions": sum(len(own) for own in ids),
        "scores": {name: one._asdict() for name, one in scores.items()},
        "texts": len(theirs),
        "tokens": sum(len(text) for text in theirs),
        "texts_by_rounding": texts,
    }


def load_reference(path: Path) -> Any:
    """Returns transformers' model with the weights of a file."""
    import gguf
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    reader = gguf.GGUFReader(path)
    stored = {one.name: one for one in reader.tensors}
    architecture = reader.fields["general.architecture"].contents()
    kind = next(one for one, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            tensor = stored[str(names.get_name(name, try_suffixes=(".weight", ".bias")))]
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            found = torch.from_numpy(values.astype("float32")).view(weight.shape)
            rows = heads.get(name.split(".")[-2], 0) if architecture == "llama" else 0
            if rows:  # such files store the two halves of a head's rotation alternately
                found = found.view(rows, -1, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)
            weight.copy_(found)
    return model


def compare_scores(
    reference: Any, native: Mapping[str, Decoder], path: Path, prompts: Sequence[list[int]]
) -> dict[str, Apart]:
    """Returns the differences by kind of pass, and those of transformers' own two precisions."""
    plain_torch = PassOptions("off")
    own = {
        **native,
        "plain torch": load_target(path, torch.float32, options=plain_torch),
        "float64": load_target(path, torch.float64, options=plain_torch),
    }
    exact = copy.deepcopy(reference).double()
    largest = {name: Apart() for name in (*own, "transformers")}
    for ids in prompts:
        single, double = (model(torch.tensor([ids])).logits[0] for model in (reference, exact))
        largest["transformers"] = largest["transformers"].with_scores(single, double)
        for name, decoder in own.items():
            wanted = double if name == "float64" else single
            largest[name] = largest[name].with_scores(prompt_scores(decoder, ids), wanted)
    return largest


def prompt_scores(decoder: Decoder, ids: Sequence[int]) -> Tensor:
    """Returns the scores at every position of a prompt."""
    page_size = 32
    num_pages = -(-len(ids) // page_size)
    pool, pages = KVPool(decoder.pool_spec(num_pages, page_size)), list(range(num_pages))
    row = PassRow(0, len(ids), 0, pages, None)
    batch = PassBatch(torch.tensor(ids), torch.arange(len(ids)), pool.slots(pages, 0, len(ids)), [row])
    return decoder.logits(decoder.forward(batch, pool).hidden)


def continued(reference: Any, prompts: Sequence[list[int]], max_tokens: int) -> list[list[int]]:
    """Returns transformers' greedy continuations of some prompts, padded on the left."""
    from transformers import GenerationConfig

    width = max(len(one) for one in prompts)
    ids = torch.tensor([[0] * (width - len(one)) + one for one in prompts])
    mask = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in prompts])
    settings = GenerationConfig(max_new_tokens=max_tokens, do_sample=False, pad_token_id=0, eos_token_id=None)
    reference.generation_config = settings
    found = reference.generate(ids, attention_mask=mask, generation_config=settings)
    return [one.tolist() for one in found[:, width:]]


def parting(
    reference: Any, name: str, prompt: list[int], text: list[int], other: list[int]
) -> Parting | None:
    """Returns where two texts part, with the gap of transformers' two best scores there; None if nowhere."""
    if text == other:
        return None
    place = next(i for i, (one, two) in enumerate(zip(text, other, strict=True)) if one != two)
    scores = reference(torch.tensor([prompt + other[:place]])).logits[0, -1]
    best, second = scores.topk(2).values.tolist()
    return Parting(name, place, best - second, best - second < NEAR["float32"])


if __name__ == "__main__":
    sys.exit(main())
