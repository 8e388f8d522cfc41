"""The building blocks of every network: projections, norms, attention, one decoder layer.

Each has a plain-torch implementation, which is the reference for the kernels. They know no model type and no
file format. May import levels 0-1, `wager.kvcache` and torch. Read `decoder_layer.py` first.
"""
