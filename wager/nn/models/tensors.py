"""The names of a decoder's tensors in its files, and how they are joined into the fused weights.

The supported model types publish the same names, and the drafter has the same layers without the `model.`
prefix; the spec determines which norms and biases exist. This module knows the names, not the arithmetic.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from wager.nn.kernels.quant_layers import Quantisation
from wager.nn.layers.decoder_layer import LayerWeights, Linear
from wager.nn.models.decoder import DecoderSpec, DecoderWeights, QuantDecoder
from wager.nn.models.dflash_spec import DFlashSpec
from wager.nn.weights import WeightReader


def read_decoder(reader: WeightReader, spec: DecoderSpec) -> DecoderWeights:
    """Returns all tensors of a decoder. Raises WeightsError that names the first missing or faulty one."""
    embedding, layers = _embedding(reader, spec), list(_layers(reader, spec))
    norm, head = _norm(reader, spec), _head(reader, spec, embedding)
    reader.leftovers()
    return DecoderWeights(embedding, layers, norm, head)


def read_quant_decoder(reader: WeightReader, spec: DecoderSpec, quantisation: Quantisation) -> QuantDecoder:
    """Returns all tensors with quantised matrices; each layer is rounded before the next one is read."""
    embedding, layers = _embedding(reader, spec), [quantisation.layer(one) for one in _layers(reader, spec)]
    norm, head = _norm(reader, spec), quantisation.head(_head(reader, spec, embedding))
    reader.leftovers()
    return QuantDecoder(embedding, layers, norm, head)


def _embedding(reader: WeightReader, spec: DecoderSpec) -> Tensor:
    return reader.get("model.embed_tokens.weight", (spec.vocab_size, spec.hidden_size))


def _layers(reader: WeightReader, spec: DecoderSpec) -> Iterator[LayerWeights]:
    for index in range(spec.num_layers):
        yield read_layer(reader, f"model.layers.{index}.", spec)


def _norm(reader: WeightReader, spec: DecoderSpec) -> Tensor:
    return reader.get("model.norm.weight", (spec.hidden_size,))


def _head(reader: WeightReader, spec: DecoderSpec, embedding: Tensor) -> Tensor:
    if spec.tie_embeddings:
        return embedding
    return reader.get("lm_head.weight", (spec.vocab_size, spec.hidden_size))


def read_layer(reader: WeightReader, prefix: str, spec: DecoderSpec | DFlashSpec) -> LayerWeights:
    """Returns one layer with q, k, v joined and gate, up joined."""
    hidden, middle = spec.hidden_size, spec.intermediate_size
    q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    return LayerWeights(
        input_norm=reader.get(prefix + "input_layernorm.weight", (hidden,)),
        qkv=_join(
            reader, attention, {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}, hidden, spec.qkv_bias
        ),
        qk_norm=_qk_norm(reader, attention, spec) if spec.qk_norm else None,
        out=_join(reader, attention, {"o_proj": hidden}, q_size, spec.o_bias),
        post_norm=reader.get(prefix + "post_attention_layernorm.weight", (hidden,)),
        gate_up=_join(reader, mlp, {"gate_proj": middle, "up_proj": middle}, hidden, spec.mlp_bias),
        down=_join(reader, mlp, {"down_proj": hidden}, middle, spec.mlp_bias),
    )


def _join(reader: WeightReader, prefix: str, sizes: dict[str, int], inner: int, bias: bool) -> Linear:
    names = [prefix + name for name in sizes]
    weight = reader.joined([name + ".weight" for name in names], [(size, inner) for size in sizes.values()])
    if not bias:
        return Linear(weight)
    return Linear(
        weight, reader.joined([name + ".bias" for name in names], [(size,) for size in sizes.values()])
    )


def _qk_norm(reader: WeightReader, prefix: str, spec: DecoderSpec | DFlashSpec) -> Tensor:
    """Returns [heads + kv_heads, head_dim], so that queries and keys are normed together."""
    queries = reader.get(prefix + "q_norm.weight", (spec.head_dim,))
    keys = reader.get(prefix + "k_norm.weight", (spec.head_dim,))
    return join_qk_norm(queries, keys, spec.num_heads, spec.num_kv_heads)


def join_qk_norm(queries: Tensor, keys: Tensor, num_heads: int, num_kv_heads: int) -> Tensor:
    """Returns one weight row per head: the query norm for query heads, the key norm for key heads."""
    return torch.cat((queries.expand(num_heads, -1), keys.expand(num_kv_heads, -1)))
