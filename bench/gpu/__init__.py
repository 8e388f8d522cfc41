"""HOW FAST IS IT ON A GPU? Runnable benchmarks for a CUDA device: `python -m bench.gpu.NAME`.

Each benchmark states the floor that memory bandwidth sets and runs its baseline in the same process.
`kernels`, `narrow` and `tune` time the parts of a pass. `floor`, `passes`, `pair`, `batch`, `load` and
`exactness` run the engine around a demo pair that is grown to the shape of a big model; `bench.gpu.all` runs
several of them in one process. Read grown.py first, then pair.py.
"""
