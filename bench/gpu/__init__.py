"""HOW FAST IS IT ON A GPU? Runnable benchmarks for a CUDA device: `python -m bench.gpu.NAME`.

Each states the floor that memory bandwidth sets, and measures what it compares with in the same run. kernels:
the pieces of a pass alone; floor, passes, pair, batch and exactness: the engine around a demo pair grown to a
big model's shape, together by `bench.gpu.all`. Read grown.py first, then pair.py.
"""
