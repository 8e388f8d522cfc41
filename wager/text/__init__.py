"""WORDS <-> TOKENS: what turns a conversation into token ids, and token ids back into text as they arrive.

May import level 0, the tokenizers library and jinja2; transformers only inside the fall-back of `tokenizer`,
when it is needed; never torch. Order of use in a request: `chat` renders the messages, `tokenizer` encodes
them; then, per emitted token, `detokenize` gives its text, `stops` decides whether it ends there, `spans`
says which phase it is in.

Read `tokenizer.py` first.
"""
