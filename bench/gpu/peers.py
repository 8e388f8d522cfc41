"""Other decoders over the same grown weights: transformers in several modes, and the DFlash loop.

transformers' model is built on the meta device and given the tensors that `wager.train.grow` makes, so it has
the engine's weights and no file is written. Its assistant is the demo's chain model with the target's
vocabulary size. The compiled mode uses a static cache; its first answer includes compiling and is never
timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch

from bench.gpu.dflash_loop import NAME as LOOP
from bench.gpu.dflash_loop import DFlashLoop
from bench.gpu.grown import BenchSession, plan_assistant
from wager.bench.peers import LOOKUP_TOKENS, Assistance, Peer
from wager.bench.records import Answer
from wager.bench.runs import Contender
from wager.errors import ConfigError
from wager.nn.models import dflash_spec
from wager.nn.models.dflash_net import DFlashNet
from wager.train.grow import GrowthPlan, reader_of

EAGER, COMPILED, ASSISTED, LOOKUP = "transformers", "transformers compiled", "assisted", "prompt-lookup"
PEERS = (EAGER, LOOP, ASSISTED, LOOKUP, COMPILED)


def transformers_model(plan: GrowthPlan, device: torch.device) -> Any:
    """The plan's target as a transformers model with the grown weights."""
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    config: Any = Qwen3Config(**dict(plan.target.config))
    with torch.device("meta"):
        model: Any = Qwen3ForCausalLM(config)
    model.load_state_dict(dict(reader_of(plan.target, plan, device).tensors()), assign=True)
    # Rotary frequencies are not among the weights and are computed on the device.
    model.model.rotary_emb = type(model.model.rotary_emb)(config=config).to(device)
    make: Any = GenerationConfig
    # The model's default settings would add an end-of-text token to every call.
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
    """transformers' generation with a static cache, which compiles the decoding pass."""

    def _generate(self, prompt_ids: Sequence[int], settings: Any) -> Answer:
        from transformers import CompileConfig

        settings.cache_implementation = "static"
        if self.model.device.type == "cpu":
            settings.disable_compile = True
        else:
            make: Any = CompileConfig
            settings.compile_config = make()
        # NOTE: compiled graphs update tensors in place, which inference mode forbids.
        with torch.inference_mode(False):
            return super()._generate(prompt_ids, settings)


class Peers:
    """Makes the peers of a session on request; the big model is made once."""

    def __init__(self, session: BenchSession) -> None:
        self.session = session

    @cached_property
    def model(self) -> Any:
        self.session.say("transformers' model with the same weights")
        return transformers_model(self.session.plan, self.session.device)

    @cached_property
    def assistant(self) -> Any:
        plan = self.session.plan
        small = plan_assistant(plan.big.vocab_size, plan.dtype)
        return transformers_model(small, self.session.device)

    @cached_property
    def drafter(self) -> DFlashNet:
        return plain_drafter(self.session.plan, self.session.device)

    def make(self, name: str, *, greedy: bool) -> Contender:
        """Make a peer by name. Sampled texts use other noise and are not compared."""
        makers: dict[str, Callable[[], Contender]] = {
            EAGER: lambda: Peer(EAGER, self.model, Assistance(), compared=greedy),
            COMPILED: lambda: CompiledPeer(COMPILED, self.model, Assistance(), compared=greedy),
            ASSISTED: lambda: Peer(ASSISTED, self.model, Assistance(self.assistant), compared=greedy),
            LOOKUP: lambda: Peer(
                LOOKUP, self.model, Assistance(lookup_tokens=LOOKUP_TOKENS), compared=greedy
            ),
            LOOP: lambda: DFlashLoop(self.model, self.drafter, compared=greedy),
        }
        if name not in makers:
            raise ConfigError("peers", name, f"some of {', '.join(PEERS)}")
        return makers[name]()

    def described(self) -> dict[str, object]:
        """Versions and settings of the peers, for the result file."""
        import transformers

        small = plan_assistant(self.session.plan.big.vocab_size, self.session.plan.dtype)
        return {
            "transformers": transformers.__version__,
            "attention": "sdpa",
            "assistant": small.big.target.__dict__
            | {"hidden_size": small.big.hidden_size, "vocab_size": small.big.vocab_size},
            "lookup_tokens": LOOKUP_TOKENS,
            "dflash_loop": "full block, dynamic caches, eager",
        }
