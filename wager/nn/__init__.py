"""NETWORKS: what numbers come out of a model for these tokens?

May import levels 0-1, `wager.kvcache` and torch. It knows neither requests nor drafts nor sampling: a pass
gets its tokens, positions, memory places and masks as one argument (`batch.PassBatch`) and gives hidden
states back. `layers/` holds the pieces, each with a plain-torch path; `models/` one file per model type;
`weights.py` reads the files.

Read `batch.py` first, then `models/decoder.py`.
"""
