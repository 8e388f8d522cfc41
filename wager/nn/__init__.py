"""NETWORKS: what numbers come out of a model for these tokens?

May import levels 0-1, `wager.kvcache` and torch. It knows neither requests nor drafts nor sampling: a pass
gets its tokens, positions, slots and masks as one argument (`batch.PassBatch`) and returns hidden states.
`layers/` holds the building blocks with a plain-torch implementation each, `models/` holds one file per model
type, and `weights.py` reads the files. Read `batch.py` first, then `models/decoder.py`.
"""
