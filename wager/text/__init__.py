"""WORDS <-> TOKENS: turns a conversation into token ids, and token ids back into text as they are generated.

May import level 0, numpy, the tokenizers library and jinja2; transformers only inside the fallback of
`tokenizer` and llguidance only inside `grammar`, when they are needed; never torch. The order of use in a
request: `chat` renders the messages and `tokenizer` encodes them; `grammar` restricts what may be generated.
Then, per emitted token, `detokenize` returns its text and `stops` decides whether the text ends. `answer`
splits the text into reasoning, content and tool calls.

Read `tokenizer.py` first.
"""
