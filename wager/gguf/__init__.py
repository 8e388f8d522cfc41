"""WHAT DOES A GGUF FILE CONTAIN?

Level 0: the standard library only. It reads the header of a file (metadata and the table of tensors),
converts the metadata to the values of a config.json, maps the names of tensors, and writes files. It knows
neither torch nor tokenizers: `wager/nn/gguf_blocks.py` dequantises the tensors, and
`wager/text/gguf_tokenizer.py` builds the tokenizer. Read `header.py` first, then `target_config.py`.
"""
