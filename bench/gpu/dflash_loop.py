"""The published DFlash loop in plain transformers: a full block every step, dynamic caches, eager.

This restates the method as its users run it (arXiv 2602.06036), for comparison. The target is transformers'
own model and returns all hidden states. The drafter is a plain module with its own cache. A step drafts the
whole block, verifies it as a chain, keeps the accepted prefix and the target's next token, and crops both
caches. Guesses are greedy; at a temperature the target's tokens are sampled. No code of the engine is used.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from wager.bench.records import Answer, Counts, Timing
from wager.errors import ModelError, one_line
from wager.nn.models.dflash_net import BlockAttention, DFlashLayer, DFlashNet
from wager.nn.rope import Rotary
from wager.records import SamplingParams

NAME = "dflash loop"


def new_cache() -> Any:
    from transformers import DynamicCache

    return DynamicCache()


def crop(cache: Any, length: int) -> None:
    """Keep the first `length` positions.

    Only negative numbers mean the same to the caches of all transformers versions.
    """
    surplus = cache.get_seq_length() - length
    if surplus > 0:
        cache.crop(-surplus)


def pick(logits: Tensor, temperature: float) -> Tensor:
    """One token for every position: the most likely one, or a sample."""
    if temperature == 0.0:
        return logits.argmax(dim=-1)
    probs = (logits.float() / temperature).softmax(dim=-1)
    return torch.multinomial(probs.flatten(0, -2), 1).view(logits.shape[:-1])


class PlainDrafter:
    """The drafter's pass over new context and one block, layer by layer."""

    def __init__(self, net: DFlashNet) -> None:
        self.net, self.spec = net, net.spec
        self.rotary = Rotary(net.spec.rope, net.fc.weight.dtype, net.fc.weight.device)

    def hidden(self, embeddings: Tensor, features: Tensor, cache: Any) -> Tensor:
        """Returns [1, block, hidden]; `cache` holds the context and takes in the features and the block."""
        net, start = self.net, cache.get_seq_length()
        context = net.hidden_norm(net.fc(features))
        stop = start + context.shape[1] + embeddings.shape[1]
        turn = self.rotary.compute(torch.arange(start, stop, device=embeddings.device))
        cos, sin = turn.cos.transpose(0, 1), turn.sin.transpose(0, 1)
        x = embeddings
        for index, module in enumerate(net.layers):
            layer = cast(DFlashLayer, module)
            normed = layer.input_layernorm(x)
            x = x + self._attend(layer.self_attn, index, (context, normed), (cos, sin), cache)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return cast(Tensor, net.norm(x))

    def _attend(
        self,
        attention: BlockAttention,
        index: int,
        streams: tuple[Tensor, Tensor],
        turn: tuple[Tensor, Tensor],
        cache: Any,
    ) -> Tensor:
        """Attention of the block over the cached context, the new context and itself."""
        both, block = torch.cat(streams, dim=1), streams[1]
        size, length = attention.head_dim, block.shape[1]
        queries = attention.q_norm(_heads(attention.q_proj(block), size))
        keys = attention.k_norm(_heads(attention.k_proj(both), size))
        queries = _rotated(queries, turn[0][:, -length:], turn[1][:, -length:])
        keys, values = cache.update(_rotated(keys, *turn), _heads(attention.v_proj(both), size), index)
        mask = self._mask(index, keys.shape[2], length, keys.device)
        out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=True)
        return cast(Tensor, attention.o_proj(out.transpose(1, 2).flatten(2)))

    def _mask(self, index: int, num_keys: int, length: int, device: torch.device) -> Tensor | None:
        """The mask of a layer with a window; None where the layer sees everything."""
        window = self.spec.windows[index]
        if window is None or num_keys <= window:
            return None
        queries = torch.arange(num_keys - length, num_keys, device=device)
        return queries[:, None] - torch.arange(num_keys, device=device)[None, :] < window


def _heads(x: Tensor, size: int) -> Tensor:
    return x.unflatten(-1, (-1, size)).transpose(1, 2)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin


@dataclass
class LoopOutput:
    """The text of one run, and the number of tokens that each step kept."""

    token_ids: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    first_s: float = 0.0


class DFlashLoop:
    """A contender that runs target and drafter in this loop."""

    def __init__(self, target: Any, net: DFlashNet, *, compared: bool = True) -> None:
        """Raises ModelError where the drafter reads the last layer, which transformers returns normed."""
        if max(net.spec.target_layer_ids) >= target.config.num_hidden_layers - 1:
            raise ModelError(f"{NAME}: the last layer of the target cannot be tapped")
        self.name, self.compared = NAME, compared
        self.target, self.drafter, self.spec = target, PlainDrafter(net), net.spec

    def begin(self) -> None:
        """Does nothing, because nothing is kept between answers."""

    def answer(self, prompt_ids: Sequence[int], params: SamplingParams) -> Answer:
        if params.seed is not None:
            torch.manual_seed(params.seed)
        start = time.perf_counter()
        try:
            with torch.inference_mode():
                output = self.generate(prompt_ids, params.max_tokens, params.temperature)
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:
            raise ModelError(f"{self.name}: {one_line(error)}") from error
        wall_s = time.perf_counter() - start
        timing = Timing(wall_s, output.first_s, len(output.token_ids))
        return Answer(timing, tuple(output.token_ids), self._counts(output, wall_s))

    def generate(self, prompt_ids: Sequence[int], max_tokens: int, temperature: float = 0.0) -> LoopOutput:
        """Run the loop. Tokens of the last step beyond `max_tokens` are cut off."""
        began, output = time.perf_counter(), LoopOutput()
        device = self.target.device
        cache, draft_cache = new_cache(), new_cache()
        ids = torch.tensor([list(prompt_ids)], device=device)
        out = self._target(ids, cache)
        root = pick(out.logits[:, -1:], temperature)
        features = self._features(out)
        output.token_ids.append(int(root))
        output.first_s = time.perf_counter() - began
        position = len(prompt_ids)
        while len(output.token_ids) < max_tokens:
            block = self._block(root, features, draft_cache)
            crop(draft_cache, position)
            out = self._target(block, cache)
            chosen = pick(out.logits, temperature)
            agree = (block[:, 1:] == chosen[:, :-1]).long().cumprod(dim=1)
            accepted = int(agree.sum())
            output.token_ids += chosen[0, : accepted + 1].tolist()
            output.steps.append(accepted + 1)
            root = chosen[:, accepted : accepted + 1]
            position += accepted + 1
            crop(cache, position)
            features = self._features(out)[:, : accepted + 1]
        del output.token_ids[max_tokens:]
        return output

    def _target(self, ids: Tensor, cache: Any) -> Any:
        start = cache.get_seq_length()
        places = torch.arange(start, start + ids.shape[1], device=ids.device)[None]
        # Of a prompt only the scores after its last token are needed.
        keep = 0 if start else 1
        return self.target(
            input_ids=ids,
            position_ids=places,
            past_key_values=cache,
            use_cache=True,
            output_hidden_states=True,
            logits_to_keep=keep,
        )

    def _features(self, out: Any) -> Tensor:
        """Outputs of the feature layers; the first hidden state is the embedding and is skipped."""
        return torch.cat([out.hidden_states[index + 1] for index in self.spec.target_layer_ids], dim=-1)

    def _block(self, root: Tensor, features: Tensor, cache: Any) -> Tensor:
        """The root and the guesses that follow it."""
        spec = self.spec
        block = root.new_full((1, spec.block_size), spec.mask_token_id)
        block[:, :1] = root
        embeddings = self.target.get_input_embeddings()(block)
        hidden = self.drafter.hidden(embeddings, features, cache)
        block[:, 1:] = self.target.lm_head(hidden[:, 1:]).argmax(dim=-1)
        return block

    def _counts(self, output: LoopOutput, wall_s: float) -> Counts:
        num_guesses, steps = self.spec.block_size - 1, len(output.steps)
        return Counts(
            answers=1,
            steps=steps,
            emitted=sum(output.steps),
            prompt_steps=1,
            bets=Counter({num_guesses: steps}),
            accepted=Counter(kept - 1 for kept in output.steps),
            drafters=Counter({"block": steps}),
            outside_ms=wall_s * 1e3,
        )
