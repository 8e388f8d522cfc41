"""Other decoders over the very same grown weights: transformers in its several ways, and the DFlash loop.

transformers' model is built without memory and given the tensors that `wager.train.grow` makes, so it holds
the engine's weights and no file is written. Its small assistant is the demo's chain model with as many words
as the target. The compiled way keeps its cache static; its first answer pays for compiling and is never
timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch

from bench.gpu.dflash_loop import NAME as LOOP
from bench.gpu.dflash_loop import DFlashLoop
from bench.gpu.grown import World, plan_assistant
from wager.bench.peers import LOOKUP_TOKENS, Peer, Way
from wager.bench.records import Answer
from wager.bench.runs import Contender
from wager.errors import ConfigError
from wager.nn.models import dflash_spec
from wager.nn.models.dflash_net import DFlashNet
from wager.train.grow import GrowthPlan, reader_of

EAGER, COMPILED, ASSISTED, LOOKUP = "transformers", "transformers compiled", "assisted", "prompt-lookup"
PEERS = (EAGER, LOOP, ASSISTED, LOOKUP, COMPILED)


def transformers_model(plan: GrowthPlan, device: torch.device) -> Any:
    """The plan's target as transformers runs it, with the grown weights."""
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    config: Any = Qwen3Config(**dict(plan.target.config))
    with torch.device("meta"):
        model: Any = Qwen3ForCausalLM(config)
    model.load_state_dict(dict(reader_of(plan.target, plan, device).tensors()), assign=True)
    # The frequencies are no weights: they are worked out anew where the weights are.
    model.model.rotary_emb = type(model.model.rotary_emb)(config=config).to(device)
    make: Any = GenerationConfig
    # A model's own settings fill in what a call leaves open: an end of text among them.
    model.generation_config = make()
    return model.requires_grad_(False).eval()


def plain_drafter(plan: GrowthPlan, device: torch.device) -> DFlashNet:
    """The grown drafter as a plain module."""
    assert plan.drafter is not None
    with torch.device("meta"):
        net = DFlashNet(dflash_spec.read_spec(plan.drafter.config))
    net.load_state_dict(dict(reader_of(plan.drafter, plan, device).tensors()), assign=True)
    return net.requires_grad_(False).eval()


class CompiledPeer(Peer):
    """transformers' generation with a static cache, which compiles the decoding pass by itself."""

    def _generate(self, prompt_ids: Sequence[int], settings: Any) -> Answer:
        from transformers import CompileConfig

        settings.cache_implementation = "static"
        if self.model.device.type == "cpu":
            settings.disable_compile = True
        else:
            make: Any = CompileConfig
            settings.compile_config = make()
        # Compiled graphs keep the tensors they update; generation itself sets no_grad, as its users have it.
        with torch.inference_mode(False):
            return super()._generate(prompt_ids, settings)


class Peers:
    """Makes the peers of a world when they are asked for; the big model is made once."""

    def __init__(self, world: World) -> None:
        self.world = world

    @cached_property
    def model(self) -> Any:
        self.world.say("transformers' model with the same weights")
        return transformers_model(self.world.plan, self.world.device)

    @cached_property
    def assistant(self) -> Any:
        plan = self.world.plan
        small = plan_assistant(plan.big.vocab_size, plan.dtype)
        return transformers_model(small, self.world.device)

    @cached_property
    def drafter(self) -> DFlashNet:
        return plain_drafter(self.world.plan, self.world.device)

    def make(self, name: str, *, greedy: bool) -> Contender:
        """A peer by name; sampled texts have noise of their own and are not compared."""
        makers: dict[str, Callable[[], Contender]] = {
            EAGER: lambda: Peer(EAGER, self.model, Way(), compared=greedy),
            COMPILED: lambda: CompiledPeer(COMPILED, self.model, Way(), compared=greedy),
            ASSISTED: lambda: Peer(ASSISTED, self.model, Way(self.assistant), compared=greedy),
            LOOKUP: lambda: Peer(LOOKUP, self.model, Way(lookup_tokens=LOOKUP_TOKENS), compared=greedy),
            LOOP: lambda: DFlashLoop(self.model, self.drafter, compared=greedy),
        }
        if name not in makers:
            raise ConfigError("peers", name, f"some of {', '.join(PEERS)}")
        return makers[name]()

    def described(self) -> dict[str, object]:
        """What the peers are, for the result file."""
        import transformers

        small = plan_assistant(self.world.plan.big.vocab_size, self.world.plan.dtype)
        return {
            "transformers": transformers.__version__,
            "attention": "sdpa",
            "assistant": small.big.target.__dict__
            | {"hidden_size": small.big.hidden_size, "vocab_size": small.big.vocab_size},
            "lookup_tokens": LOOKUP_TOKENS,
            "dflash_loop": "full block, dynamic caches, eager",
        }
