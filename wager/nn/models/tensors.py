"""The names of a decoder's tensors in its files, and how they are joined into the fused weights.

The supported model types publish the same names, and the drafter has the same layers without the `model.`
prefix; the spec determines which norms and biases exist. This module knows the names, not the arithmetic.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from wager.nn.kernels.quant_layers import Quantisation
from wager.nn.layers.decoder_layer import LayerWeights, Linear
from wager.nn.models.decoder import DecoderSpec, DecoderWeights, QuantDecoder
from wager.nn.models.dflash_spec import DFlashSpec
from wager.nn.narrow import NarrowDecoder, NarrowLayer, NarrowLinear
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


def read_narrow_decoder(reader: WeightReader, spec: DecoderSpec) -> NarrowDecoder:
    """Returns all tensors; matrices that the file quantises keep their narrow form."""
    words = (spec.vocab_size, spec.hidden_size)
    narrow = reader.grouped(["model.embed_tokens.weight"], [words])
    embedding = _embedding(reader, spec) if narrow is None else narrow
    layers = [read_narrow_layer(reader, f"model.layers.{index}.", spec) for index in range(spec.num_layers)]
    norm, head = _norm(reader, spec), embedding
    if not spec.tie_embeddings:
        narrow = reader.grouped(["lm_head.weight"], [words])
        head = reader.get("lm_head.weight", words) if narrow is None else narrow
    reader.leftovers()
    return NarrowDecoder(embedding, layers, norm, head)


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


def decoder_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Returns the published names of a decoder's tensors with their shapes."""
    words = (spec.vocab_size, spec.hidden_size)
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": words}
    for index in range(spec.num_layers):
        found |= layer_shapes(spec, f"model.layers.{index}.")
    found["model.norm.weight"] = (spec.hidden_size,)
    return found if spec.tie_embeddings else found | {"lm_head.weight": words}


def layer_shapes(spec: DecoderSpec | DFlashSpec, prefix: str) -> dict[str, tuple[int, ...]]:
    """Returns the published names of a layer's tensors with their shapes."""
    norms = {"input_layernorm": spec.hidden_size, "post_attention_layernorm": spec.hidden_size}
    if spec.qk_norm:
        norms |= {"self_attn.q_norm": spec.head_dim, "self_attn.k_norm": spec.head_dim}
    found: dict[str, tuple[int, ...]] = {f"{prefix}{name}.weight": (size,) for name, size in norms.items()}
    for part in _layer_parts(spec).values():
        for name, size in part.sizes.items():
            found[f"{prefix}{name}.weight"] = (size, part.inner)
            if part.bias:
                found[f"{prefix}{name}.bias"] = (size,)
    return found


def read_layer(reader: WeightReader, prefix: str, spec: DecoderSpec | DFlashSpec) -> LayerWeights:
    """Returns one layer with q, k, v joined and gate, up joined."""
    hidden, parts = spec.hidden_size, _layer_parts(spec)
    return LayerWeights(
        input_norm=reader.get(prefix + "input_layernorm.weight", (hidden,)),
        qkv=_join(reader, prefix, parts["qkv"]),
        qk_norm=_qk_norm(reader, prefix + "self_attn.", spec) if spec.qk_norm else None,
        out=_join(reader, prefix, parts["out"]),
        post_norm=reader.get(prefix + "post_attention_layernorm.weight", (hidden,)),
        gate_up=_join(reader, prefix, parts["gate_up"]),
        down=_join(reader, prefix, parts["down"]),
    )


def read_narrow_layer(reader: WeightReader, prefix: str, spec: DecoderSpec | DFlashSpec) -> NarrowLayer:
    """Returns one layer as `read_layer` does, with matrices in their narrow form."""
    joined = {name: _join_narrow(reader, prefix, part) for name, part in _layer_parts(spec).items()}
    return NarrowLayer(
        input_norm=reader.get(prefix + "input_layernorm.weight", (spec.hidden_size,)),
        qkv=joined["qkv"],
        qk_norm=_qk_norm(reader, prefix + "self_attn.", spec) if spec.qk_norm else None,
        out=joined["out"],
        post_norm=reader.get(prefix + "post_attention_layernorm.weight", (spec.hidden_size,)),
        gate_up=joined["gate_up"],
        down=joined["down"],
    )


class _Part(NamedTuple):
    """A fused product: the output sizes of its projections by name, its inputs, and whether it has biases."""

    sizes: dict[str, int]
    inner: int
    bias: bool


def _layer_parts(spec: DecoderSpec | DFlashSpec) -> dict[str, _Part]:
    hidden, middle = spec.hidden_size, spec.intermediate_size
    q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    qkv = {"self_attn.q_proj": q_size, "self_attn.k_proj": kv_size, "self_attn.v_proj": kv_size}
    return {
        "qkv": _Part(qkv, hidden, spec.qkv_bias),
        "out": _Part({"self_attn.o_proj": hidden}, q_size, spec.o_bias),
        "gate_up": _Part({"mlp.gate_proj": middle, "mlp.up_proj": middle}, hidden, spec.mlp_bias),
        "down": _Part({"mlp.down_proj": hidden}, middle, spec.mlp_bias),
    }


def _join_narrow(reader: WeightReader, prefix: str, part: _Part) -> NarrowLinear:
    names = [f"{prefix}{name}.weight" for name in part.sizes]
    narrow = reader.grouped(names, [(size, part.inner) for size in part.sizes.values()])
    if narrow is None:
        return NarrowLinear(*_join(reader, prefix, part))
    return NarrowLinear(narrow, _join_biases(reader, prefix, part))


def _join(reader: WeightReader, prefix: str, part: _Part) -> Linear:
    names = [f"{prefix}{name}.weight" for name in part.sizes]
    weight = reader.joined(names, [(size, part.inner) for size in part.sizes.values()])
    return Linear(weight, _join_biases(reader, prefix, part))


def _join_biases(reader: WeightReader, prefix: str, part: _Part) -> Tensor | None:
    if not part.bias:
        return None
    return reader.joined(
        [f"{prefix}{name}.bias" for name in part.sizes], [(size,) for size in part.sizes.values()]
    )


def _qk_norm(reader: WeightReader, prefix: str, spec: DecoderSpec | DFlashSpec) -> Tensor:
    """Returns [heads + kv_heads, head_dim], so that queries and keys are normed together."""
    queries = reader.get(prefix + "q_norm.weight", (spec.head_dim,))
    keys = reader.get(prefix + "k_norm.weight", (spec.head_dim,))
    return join_qk_norm(queries, keys, spec.num_heads, spec.num_kv_heads)


def join_qk_norm(queries: Tensor, keys: Tensor, num_heads: int, num_kv_heads: int) -> Tensor:
    """Returns one weight row per head: the query norm for query heads, the key norm for key heads."""
    return torch.cat((queries.expand(num_heads, -1), keys.expand(num_kv_heads, -1)))
