"""The CPU pass as compiled code: all layers of a network in one call.

May import what `nn` may. `source/` is C++17 that knows nothing of torch. `build.py` compiles it once per
machine, in the background, into the user's cache. `library.py` loads it and mirrors its records. `pack.py`
converts weights to its layout, `passes.py` runs whole passes, and `networks.py` creates them from a model's
parts. If native passes are not possible (no compiler, another device or dtype), the plain-torch path of
`layers/` runs, and `loader.py` has the reason. Read `source/products.h` first for the arithmetic, then
`passes.py`.
"""
