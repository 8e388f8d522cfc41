"""The inference drafter of a trainable module, with the same weights, fused as `tensors.py` fuses them."""

from typing import cast

import torch
from torch import Tensor, nn

from wager.nn.layers.decoder_layer import LayerWeights, Linear
from wager.nn.models.dflash import DFlash, DFlashWeights
from wager.nn.models.dflash_net import DFlashLayer, DFlashNet
from wager.nn.models.dflash_spec import DFlashSpec
from wager.nn.models.tensors import join_qk_norm


@torch.no_grad()
def fused_drafter(net: DFlashNet) -> DFlash:
    """The fused drafter with copies of the module's weights."""
    layers = [_fuse(cast(DFlashLayer, layer), net.spec) for layer in net.layers]
    weights = DFlashWeights(
        _copy(net.fc.weight), _copy(net.hidden_norm.weight), layers, _copy(net.norm.weight)
    )
    return DFlash(net.spec, weights, "out_in")


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _fuse(layer: DFlashLayer, spec: DFlashSpec) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    queries, keys = _copy(attention.q_norm.weight), _copy(attention.k_norm.weight)
    return LayerWeights(
        input_norm=_copy(layer.input_layernorm.weight),
        qkv=_join(attention.q_proj, attention.k_proj, attention.v_proj),
        qk_norm=join_qk_norm(queries, keys, spec.num_heads, spec.num_kv_heads),
        out=_join(attention.o_proj),
        post_norm=_copy(layer.post_attention_layernorm.weight),
        gate_up=_join(mlp.gate_proj, mlp.up_proj),
        down=_join(mlp.down_proj),
    )


def _join(*parts: nn.Linear) -> Linear:
    weight = torch.cat([part.weight.detach() for part in parts])
    biases = [part.bias.detach() for part in parts if part.bias is not None]
    return Linear(weight, torch.cat(biases) if biases else None)
