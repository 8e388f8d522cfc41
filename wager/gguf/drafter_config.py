"""Block drafters (DFlash) in GGUF files: their metadata as the values of a config.json, and the reverse.

Files of llama.cpp (architecture `dflash`) and of lucebox (`dflash-draft`, `qwen35-dflash-draft`) can be read;
llama.cpp's are written. Every value comes from the file and is checked against the shapes of the tensors. A
missing or contradictory value is an error and never a default, because a wrong value would only show as few
accepted guesses. What Wager's own drafters record beside the published fields has keys under `wager.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from wager.errors import ModelError, WeightsError
from wager.gguf.fields import Fields
from wager.gguf.header import Header
from wager.gguf.names import STYLE_OF_DRAFTER, architecture_style
from wager.gguf.rope import read_rope

__all__ = ["ARCHITECTURE", "drafter_config", "drafter_metadata"]

ARCHITECTURE = "dflash"
"""The architecture that is written."""
_REFUSED = {
    "markov_w1": "DSpark drafters",
    "conf_proj": "DSpark drafters",
    "d2t": "drafters with a vocabulary of their own",
}
_LUCEBOX_LAYERS, _LAYERS = ".dflash.target_layer_ids", ".target_layers"


class _Own(NamedTuple):
    """A value that only Wager's drafters record: its key, and whether it is in `dflash_config`."""

    key: str
    field: str
    is_nested: bool
    kind: type


_OWN = (
    _Own("wager.num_target_layers", "num_target_layers", False, int),
    _Own("wager.max_known_tokens", "max_known_tokens", True, int),
    _Own("wager.block_lengths", "block_lengths", True, list),
    _Own("wager.draft_vocab", "draft_vocab", True, list),
    _Own("wager.block_causal_in_sliding", "block_causal_in_sliding", True, bool),
)


def drafter_config(header: Header) -> dict[str, Any]:
    """Returns the values of a config.json. Raises ModelError that names a missing or contradictory key."""
    architecture = header.architecture
    is_lucebox = STYLE_OF_DRAFTER[architecture] == "lucebox"
    fields = Fields(header, architecture)
    _refuse(fields)
    head_dim = fields.count(".attention.key_length")
    if fields.count(".attention.value_length") != head_dim:
        raise fields.fault(".attention.value_length", f"is not the length of keys, {head_dim}")
    theta = fields.number(".rope.freq_base")
    values: dict[str, Any] = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": fields.count(".embedding_length"),
        "num_hidden_layers": fields.count(".block_count"),
        "num_attention_heads": fields.count(".attention.head_count"),
        "num_key_value_heads": fields.count(".attention.head_count_kv"),
        "head_dim": head_dim,
        "intermediate_size": fields.count(".feed_forward_length"),
        "rms_norm_eps": fields.number(".attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": fields.count(".context_length"),
        "rope_theta": theta,
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "block_size": fields.count(".dflash.block_size" if is_lucebox else ".block_size"),
    }
    rope = read_rope(fields, head_dim, theta)
    if rope["rope_type"] != "default":
        values["rope_parameters"] = rope
    if ".vocab_size" in fields:
        values["vocab_size"] = fields.count(".vocab_size")
    values |= _windows(fields, values["num_hidden_layers"])
    mask = ".dflash.mask_token_id" if is_lucebox else "tokenizer.ggml.mask_token_id"
    values["dflash_config"] = {
        "mask_token_id": fields.token(mask),
        "target_layer_ids": _layers(fields, is_lucebox),
    }
    for own in _OWN:
        if own.key in fields:
            (values["dflash_config"] if own.is_nested else values)[own.field] = _own_value(fields, own)
    _check_shapes(fields, values)
    return values


def _refuse(fields: Fields) -> None:
    for name, what in _REFUSED.items():
        found = next((one for one in fields.header.tensors if one.split(".")[0] == name), None)
        if found is not None:
            raise WeightsError(f"belongs to {what}, which are not supported", found)
    if fields.flag(".sample_from_anchor"):
        raise fields.fault(".sample_from_anchor", "is true: a guess from the anchor itself is not supported")


def _layers(fields: Fields, is_lucebox: bool) -> list[int]:
    """Returns the target layers whose outputs are features; llama.cpp counts the embedding as layer 0."""
    key = _LUCEBOX_LAYERS if is_lucebox else _LAYERS
    ids = fields.numbers(key)
    shift = 0 if is_lucebox else 1
    found = [one - shift for one in ids]
    if min(found) < 0 or len(set(found)) != len(found):
        raise fields.fault(key, f"is {ids}: expected different layers from {shift} on")
    if is_lucebox and ".dflash.n_target_layers" in fields:
        count = fields.count(".dflash.n_target_layers")
        if count != len(found):
            raise fields.fault(
                ".dflash.n_target_layers", f"is {count}, but {fields.key(key)} lists {len(found)}"
            )
    return found


def _windows(fields: Fields, num_layers: int) -> dict[str, Any]:
    window, pattern = ".attention.sliding_window", ".attention.sliding_window_pattern"
    if fields.get(window) in (None, 0):
        if fields.get(pattern) and any(fields.get(pattern)):
            raise fields.fault(window, f"is missing, but {fields.key(pattern)} names sliding layers")
        return {"layer_types": ["full_attention"] * num_layers}
    flags = fields.required(pattern)
    if not isinstance(flags, list) or len(flags) != num_layers:
        raise fields.fault(pattern, f"is {flags!r}: expected a flag for each of {num_layers} layers")
    types = ["sliding_attention" if flag else "full_attention" for flag in flags]
    return {"layer_types": types, "sliding_window": fields.count(window)}


def _own_value(fields: Fields, own: _Own) -> Any:
    value = fields.required(own.key)
    if type(value) is not own.kind:
        raise fields.fault(own.key, f"is {value!r}: expected {own.kind.__name__}")
    return value


def _check_shapes(fields: Fields, values: Mapping[str, Any]) -> None:
    tensors, style = fields.header.tensors, architecture_style(fields.prefix)
    hidden, head = values["hidden_size"], values["head_dim"]
    num_features = len(values["dflash_config"]["target_layer_ids"])
    layers_key = _LUCEBOX_LAYERS if STYLE_OF_DRAFTER[fields.prefix] == "lucebox" else _LAYERS
    wanted = {
        style.whole["norm.weight"]: (".embedding_length", (hidden,)),
        style.whole["fc.weight"]: (layers_key, (hidden, num_features * hidden)),
        "blk.0.attn_k_norm.weight": (".attention.key_length", (head,)),
        "blk.0.attn_q.weight": (".attention.head_count", (values["num_attention_heads"] * head, hidden)),
        "blk.0.attn_k.weight": (".attention.head_count_kv", (values["num_key_value_heads"] * head, hidden)),
        "blk.0.ffn_gate.weight": (".feed_forward_length", (values["intermediate_size"], hidden)),
    }
    for name, (key, shape) in wanted.items():
        if name not in tensors:
            raise WeightsError(f"is missing from {fields.header.path.name}", name)
        if tensors[name].shape != shape:
            raise fields.fault(
                key, f"gives {name} the shape {list(shape)}, but it has {list(tensors[name].shape)}"
            )
    layers = {name.split(".")[1] for name in tensors if name.startswith("blk.")}
    if len(layers) != values["num_hidden_layers"]:
        raise fields.fault(
            ".block_count",
            f"is {values['num_hidden_layers']}, but the file has tensors of {len(layers)} layers",
        )


def drafter_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns llama.cpp's metadata of a drafter's config.json. Raises ModelError that names a missing or
    contradictory field; no field has a default.
    """
    own = config.get("dflash_config")
    if not isinstance(own, Mapping):
        raise ModelError("config field dflash_config is missing: this is not the folder of a block drafter")
    prefix, theta = ARCHITECTURE, _theta(config)
    keys: dict[str, Any] = {
        "general.architecture": prefix,
        f"{prefix}.context_length": _integer(config, "max_position_embeddings"),
        f"{prefix}.embedding_length": _integer(config, "hidden_size"),
        f"{prefix}.block_count": _integer(config, "num_hidden_layers"),
        f"{prefix}.feed_forward_length": _integer(config, "intermediate_size"),
        f"{prefix}.attention.head_count": _integer(config, "num_attention_heads"),
        f"{prefix}.attention.head_count_kv": _integer(config, "num_key_value_heads"),
        f"{prefix}.attention.key_length": _integer(config, "head_dim"),
        f"{prefix}.attention.value_length": _integer(config, "head_dim"),
        f"{prefix}.attention.layer_norm_rms_epsilon": float(_number(config, "rms_norm_eps")),
        f"{prefix}.rope.dimension_count": _integer(config, "head_dim"),
        f"{prefix}.rope.freq_base": theta,
        f"{prefix}.vocab_size": _integer(config, "vocab_size"),
        f"{prefix}.block_size": _one_block_size(config, own),
        f"{prefix}.target_layers": [layer + 1 for layer in _layer_ids(own)],
        "tokenizer.ggml.mask_token_id": _integer(own, "mask_token_id", "dflash_config.", lowest=0),
    }
    keys |= _window_keys(config, prefix)
    for one in _OWN:
        value = (own if one.is_nested else config).get(one.field)
        if value is not None:
            if type(value) is not one.kind:
                raise ModelError(f"config field {one.field} = {value!r}: expected {one.kind.__name__}")
            keys[one.key] = value
    return {key: value for key, value in keys.items() if value != []}


def _integer(values: Mapping[str, Any], name: str, where: str = "", lowest: int = 1) -> int:
    value = values.get(name)
    if value is None:
        raise ModelError(f"config field {where}{name} is missing")
    if type(value) is not int or value < lowest:
        raise ModelError(f"config field {where}{name} = {value!r}: expected an integer of at least {lowest}")
    return value


def _number(values: Mapping[str, Any], name: str) -> float:
    value = values.get(name)
    if value is None:
        raise ModelError(f"config field {name} is missing")
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ModelError(f"config field {name} = {value!r}: expected a positive number")
    return value


def _theta(config: Mapping[str, Any]) -> float:
    """Returns the base of the rotation; both spellings may be there if they agree."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise ModelError(f"config rope_type {kind!r}: only a rotation without scaling is converted")
    stated = {
        float(_number(part, "rope_theta")) for part in (config, rope) if part.get("rope_theta") is not None
    }
    if not stated:
        raise ModelError("config field rope_theta is missing")
    if len(stated) > 1:
        raise ModelError(f"config has two values of rope_theta: {sorted(stated)}")
    return stated.pop()


def _one_block_size(config: Mapping[str, Any], own: Mapping[str, Any]) -> int:
    stated = {_integer(part, "block_size") for part in (config, own) if part.get("block_size") is not None}
    if len(stated) > 1:
        raise ModelError(f"config has two values of block_size: {sorted(stated)}")
    return stated.pop() if stated else _integer(config, "block_size")


def _layer_ids(own: Mapping[str, Any]) -> list[int]:
    ids = own.get("target_layer_ids")
    if ids is None:
        raise ModelError("config field dflash_config.target_layer_ids is missing")
    if not isinstance(ids, list) or not ids or not all(type(one) is int and one >= 0 for one in ids):
        raise ModelError(f"config dflash_config.target_layer_ids = {ids!r}: expected a list of layers")
    return ids


def _window_keys(config: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    types = config.get("layer_types")
    if types is None or "sliding_attention" not in types:
        return {}
    if len(types) != config["num_hidden_layers"]:
        raise ModelError(f"config field layer_types must list {config['num_hidden_layers']} layers")
    return {
        f"{prefix}.attention.sliding_window": _integer(config, "sliding_window"),
        f"{prefix}.attention.sliding_window_pattern": [one == "sliding_attention" for one in types],
    }
