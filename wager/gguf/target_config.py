"""The metadata of a target's GGUF file as the values of a config.json.

The sizes are checked against the shapes of the tensors. The architecture `llama` covers the model types llama
and mistral; a file of it that states a sliding window is mistral.
"""

from __future__ import annotations

from typing import Any

from wager.errors import ModelError
from wager.gguf.fields import Fields
from wager.gguf.header import Header
from wager.gguf.rope import DEFAULT_THETA, read_rope
from wager.gguf.token_kinds import CONTROL

__all__ = ["TARGET_ARCHITECTURES", "end_ids", "permuted_heads", "target_config"]

TARGET_ARCHITECTURES = ("llama", "qwen2", "qwen3")
_CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_WIDE_TYPES = {"F32": "float32", "F16": "float16"}


def target_config(header: Header) -> dict[str, Any]:
    """Returns the values of a config.json. Raises ModelError that names a missing or unsupported key."""
    architecture = header.architecture
    if architecture not in TARGET_ARCHITECTURES:
        known = ", ".join(TARGET_ARCHITECTURES)
        raise ModelError(
            f"{header.path.name}: the architecture {architecture!r} is not supported; known: {known}"
        )
    fields = Fields(header, architecture)
    _refuse(fields)
    values = _sizes(fields)
    values["rope_parameters"] = read_rope(fields, values["head_dim"], _theta(fields))
    values |= _words(fields) | _biases(header, architecture) | _windows(fields, architecture)
    values["architectures"] = [_CLASSES[values["model_type"]]]
    values["dtype"] = _dtype(header)
    _check_shapes(fields, values)
    return values


def permuted_heads(header: Header, config: dict[str, Any]) -> dict[str, int]:
    """Returns the number of heads of the projections whose rows a file stores in another order.

    Files of the architecture `llama` store the two halves of each head's rotation alternately.
    """
    if header.architecture != "llama":
        return {}
    return {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}


def _refuse(fields: Fields) -> None:
    if fields.get("split.count") not in (None, 0, 1):
        raise fields.fault(
            "split.count", f"is {fields.get('split.count')}: merge the parts of the model first"
        )
    if fields.get(".expert_count") not in (None, 0):
        raise fields.fault(".expert_count", f"is {fields.get('.expert_count')}: experts are not supported")
    scale = fields.get(".attention.scale")
    if scale not in (None, 0.0):
        raise fields.fault(".attention.scale", f"is {scale}: only the usual scale is supported")


def _sizes(fields: Fields) -> dict[str, Any]:
    hidden, num_heads = fields.count(".embedding_length"), fields.count(".attention.head_count")
    has_kv_heads = ".attention.head_count_kv" in fields
    head_dim = (
        fields.count(".attention.key_length") if ".attention.key_length" in fields else hidden // num_heads
    )
    if ".attention.value_length" in fields and fields.count(".attention.value_length") != head_dim:
        raise fields.fault(".attention.value_length", f"is not the length of keys, {head_dim}")
    return {
        "model_type": fields.prefix,
        "hidden_size": hidden,
        "num_hidden_layers": fields.count(".block_count"),
        "num_attention_heads": num_heads,
        # As in llama.cpp: a file without this key has as many key heads as query heads.
        "num_key_value_heads": fields.count(".attention.head_count_kv") if has_kv_heads else num_heads,
        "head_dim": head_dim,
        "intermediate_size": fields.count(".feed_forward_length"),
        "rms_norm_eps": fields.number(".attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": fields.count(".context_length"),
        "hidden_act": "silu",
    }


def _theta(fields: Fields) -> float:
    return fields.number(".rope.freq_base") if ".rope.freq_base" in fields else DEFAULT_THETA


def _words(fields: Fields) -> dict[str, Any]:
    """Returns the vocabulary's size, whether head and embedding are one, and the ids that end a text."""
    tensors = fields.header.tensors
    if "token_embd.weight" not in tensors:
        raise ModelError(f"{fields.header.path.name}: the tensor token_embd.weight is missing")
    size = tensors["token_embd.weight"].shape[0]
    if ".vocab_size" in fields and fields.count(".vocab_size") != size:
        raise fields.fault(
            ".vocab_size", f"is {fields.count('.vocab_size')}, but token_embd.weight has {size} rows"
        )
    return {
        "vocab_size": size,
        "tie_word_embeddings": "output.weight" not in tensors,
        "bos_token_id": fields.token(_BOS_KEY) if _BOS_KEY in fields else None,
        "eos_token_id": list(end_ids(fields.header)) or None,
    }


def end_ids(header: Header) -> tuple[int, ...]:
    """Returns the ids that end a text: those that a file names, then control tokens with the usual texts.

    Like llama.cpp: many files name only one of the tokens with which their model ends an answer.
    """
    fields = Fields(header, "")
    named = [fields.token(key) for key in _END_KEYS if key in fields]
    texts, kinds = (fields.get(f"tokenizer.ggml.{key}") or [] for key in ("tokens", "token_type"))
    usual = [
        index
        for index, (text, kind) in enumerate(zip(texts, kinds, strict=False))
        if kind == CONTROL and text in _END_TEXTS
    ]
    return tuple(dict.fromkeys([*named, *usual]))


_END_TEXTS = frozenset(
    (
        "</s>",
        "<|endoftext|>",
        "<|im_end|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<｜end▁of▁sentence｜>",
    )
)
_END_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
_BOS_KEY = "tokenizer.ggml.bos_token_id"


def _biases(header: Header, architecture: str) -> dict[str, Any]:
    if architecture == "qwen2":
        return {}
    found = {"attention_bias": "blk.0.attn_q.bias" in header.tensors}
    return found | ({"mlp_bias": "blk.0.ffn_gate.bias" in header.tensors} if architecture == "llama" else {})


def _windows(fields: Fields, architecture: str) -> dict[str, Any]:
    window = fields.get(".attention.sliding_window")
    if window in (None, 0):
        return {}
    if architecture != "llama" or ".attention.sliding_window_pattern" in fields:
        raise fields.fault(
            ".attention.sliding_window", f"is {window}: windows of this file are not supported"
        )
    return {
        "model_type": "mistral",
        "sliding_window": fields.count(".attention.sliding_window"),
        "attention_bias": None,
    }


def _dtype(header: Header) -> str:
    """Returns the dtype of most weights, and bfloat16 where those are quantised."""
    sizes: dict[str, int] = {}
    for entry in header.tensors.values():
        if len(entry.shape) > 1:
            sizes[entry.type.name] = sizes.get(entry.type.name, 0) + entry.num_bytes
    return _WIDE_TYPES.get(max(sizes, key=sizes.__getitem__), "bfloat16")


def _check_shapes(fields: Fields, values: dict[str, Any]) -> None:
    """Raises ModelError if the sizes contradict the shapes of the first layer or the number of layers."""
    tensors = fields.header.tensors
    hidden, head_dim = values["hidden_size"], values["head_dim"]
    wanted = {
        "token_embd.weight": ("embedding_length", (values["vocab_size"], hidden)),
        "blk.0.attn_q.weight": ("attention.head_count", (values["num_attention_heads"] * head_dim, hidden)),
        "blk.0.attn_k.weight": (
            "attention.head_count_kv",
            (values["num_key_value_heads"] * head_dim, hidden),
        ),
        "blk.0.ffn_gate.weight": ("feed_forward_length", (values["intermediate_size"], hidden)),
    }
    for name, (key, shape) in wanted.items():
        if name in tensors and tensors[name].shape != shape:
            raise fields.fault(
                f".{key}", f"gives {name} the shape {list(shape)}, but it has {list(tensors[name].shape)}"
            )
    layers = {name.split(".")[1] for name in tensors if name.startswith("blk.")}
    if len(layers) != values["num_hidden_layers"]:
        raise fields.fault(
            ".block_count",
            f"is {values['num_hidden_layers']}, but the file has tensors of {len(layers)} layers",
        )
