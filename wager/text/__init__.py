"""WORDS <-> TOKENS: what turns a conversation into token ids, and token ids back into text as they arrive.

May import level 0, numpy, the tokenizers library and jinja2; transformers only inside the fall-back of
`tokenizer` and llguidance only inside `grammar`, when they are needed; never torch. Order of use in a
request: `chat` renders the messages, `tokenizer` encodes them; `grammar` says what may be written; then, per
emitted token, `detokenize` gives its text, `stops` decides whether it ends there, `spans` says which phase it
is in; `answer` splits the text into reasoning, content and tool calls.

Read `tokenizer.py` first.
"""
