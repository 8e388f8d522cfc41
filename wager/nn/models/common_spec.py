"""The fields of a `DecoderSpec` that every supported model type reads from its config in the same way.

The file of a model type passes what differs: head size, windows, defaults and features.
"""

from wager.nn.models.decoder import DecoderSpec
from wager.nn.models.hf_config import HFConfig
from wager.nn.rope import read_rope


def split_head_dim(config: HFConfig) -> int:
    """Returns the head size of the config, else the hidden size divided by the number of heads."""
    return config.count("head_dim", config.count("hidden_size") // config.count("num_attention_heads"))


def decoder_spec(
    model_type: str,
    config: HFConfig,
    head_dim: int,
    windows: tuple[int | None, ...],
    *,
    default_max_position: int,
    default_kv_heads: int | None = None,
    **features: bool,
) -> DecoderSpec:
    """Returns the spec of a config; `features` are the fields of DecoderSpec for norms and biases."""
    num_heads = config.count("num_attention_heads")
    return DecoderSpec(
        model_type=model_type,
        hidden_size=config.count("hidden_size"),
        num_layers=config.count("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=config.count("num_key_value_heads", default_kv_heads or num_heads),
        head_dim=head_dim,
        intermediate_size=config.count("intermediate_size"),
        vocab_size=config.count("vocab_size"),
        eps=config.number("rms_norm_eps", 1e-6),
        rope=read_rope(config.values, head_dim),
        windows=windows,
        max_position=config.count("max_position_embeddings", default_max_position),
        tie_embeddings=config.flag("tie_word_embeddings"),
        **features,
    )
