"""The pieces every network here is made of: projections, norms, attention, one decoder layer.

Each has a plain-torch path, which is the reference; kernels stand beside them. They know no model type and no
file format. May import levels 0-1, `wager.kvcache` and torch. Read `decoder_layer.py` first.
"""
