"""The kinds of tokens, as `tokenizer.ggml.token_type` numbers them."""

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
