"""The DFlash loop in plain transformers: it writes plain decoding's text with the published network."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bench.gpu.dflash_loop import DFlashLoop, PlainDrafter, crop, new_cache, pick
from tests.equivalence.world import World, make_world
from wager.errors import ModelError
from wager.nn.models import dflash_spec
from wager.nn.models.dflash_net import DFlashNet
from wager.nn.weights import read_config
from wager.records import SamplingParams

PROMPT = [3, 7, 11, 2, 9, 30, 7, 11]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("loop"), seed=7)


@pytest.fixture(scope="module")
def net(world: World) -> DFlashNet:
    folder = Path(world.block)
    # This pair's feature layers include the target's last, which transformers returns normed.
    spec = replace(dflash_spec.read_spec(read_config(folder)), target_layer_ids=(0, 1))
    made = DFlashNet(spec)
    made.load_state_dict(load_file(folder / "model.safetensors"))
    return made.double().eval()


@pytest.fixture(scope="module")
def target(world: World) -> Any:
    return world.reference.double().eval()


def plain_text(target: Any, num_tokens: int) -> list[int]:
    ids = list(PROMPT)
    with torch.inference_mode():
        for _ in range(num_tokens):
            ids.append(int(target(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(PROMPT) :]


def test_the_text_equals_plain_decodings(target: Any, net: DFlashNet) -> None:
    answer = DFlashLoop(target, net).answer(PROMPT, SamplingParams(max_tokens=20))
    assert list(answer.token_ids) == plain_text(target, 20)
    counts = answer.counts
    assert counts is not None and counts.emitted >= 19
    assert counts.emitted == counts.steps + sum(kept * times for kept, times in counts.accepted.items())
    assert set(counts.bets) == {net.spec.block_size - 1}


def test_the_last_layer_cannot_be_a_feature_layer(target: Any, net: DFlashNet) -> None:
    with pytest.raises(ModelError, match="last layer"):
        DFlashLoop(target, DFlashNet(replace(net.spec, target_layer_ids=(0, 2))))


class Prophet(DFlashLoop):
    """Guesses the first `right` tokens of every block as plain decoding writes them, and then wrongly."""

    def __init__(self, target: Any, net: DFlashNet, text: list[int], right: int) -> None:
        super().__init__(target, net)
        self.text, self.right, self.said = text, right, 0

    def _block(self, root: Any, features: Any, cache: Any) -> Any:
        block = super()._block(root, features, cache)
        place = cache.get_seq_length() - len(PROMPT) - self.spec.block_size + 1
        coming = self.text[place:] + [0] * self.spec.block_size
        for index in range(1, self.spec.block_size):
            wrong = (coming[index - 1] + 1) % 64
            block[0, index] = coming[index - 1] if index <= self.right else wrong
        return block


@pytest.mark.parametrize("right", [0, 1, 3])
def test_guesses_that_come_true_are_kept(target: Any, net: DFlashNet, right: int) -> None:
    text = plain_text(target, 40)
    told = Prophet(target, net, text, right).generate(PROMPT, 21)
    assert told.token_ids == text[:21]
    assert set(told.steps) == {right + 1} and len(told.steps) == -(-20 // (right + 1))


def test_the_cached_drafter_is_the_published_network(net: DFlashNet) -> None:
    torch.manual_seed(0)
    spec, cache, drafter = net.spec, new_cache(), PlainDrafter(net)
    features = torch.randn(1, 14, spec.feature_size, dtype=torch.float64)
    with torch.inference_mode():
        for start, stop in ((0, 9), (9, 10), (10, 14)):
            block = torch.randn(1, spec.block_size, spec.hidden_size, dtype=torch.float64)
            own = drafter.hidden(block, features[:, start:stop], cache)
            positions = torch.arange(stop + spec.block_size)[None]
            whole = net(block, features[:, :stop], positions)
            torch.testing.assert_close(own, whole, rtol=1e-6, atol=1e-6)
            assert cache.get_seq_length() == stop + spec.block_size
            crop(cache, stop)
            assert cache.get_seq_length() == stop


def test_sampled_texts_follow_the_seed(target: Any, net: DFlashNet) -> None:
    loop = DFlashLoop(target, net)
    one, other, third = (
        loop.answer(PROMPT, SamplingParams(max_tokens=16, temperature=1.0, seed=seed)).token_ids
        for seed in (1, 1, 2)
    )
    assert one == other and one != third and len(one) == 16


def test_a_token_is_drawn_as_likely_as_it_is() -> None:
    torch.manual_seed(0)
    logits = torch.tensor([2.0, 0.0, -1.0]).repeat(1, 4000, 1)
    found = pick(logits, 2.0).flatten().bincount(minlength=3) / 4000
    torch.testing.assert_close(found, (logits[0, 0] / 2.0).softmax(dim=-1), atol=0.03, rtol=0.0)
    assert pick(logits, 0.0).eq(0).all()
