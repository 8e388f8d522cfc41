"""The CPU pass as compiled code: all layers of a network in one call.

May import what `nn` may. `source/` is C++17 that knows nothing of torch; `build.py` compiles it once per
machine, in the background, into the user's cache; `library.py` loads it and mirrors its records; `pack.py`
lays weights out for it; `passes.py` runs whole passes, `networks.py` makes them of a model's parts. What
cannot be had here (no compiler, another device or dtype) is served by the plain-torch path of `layers/`, and
`switch.py` says why.

Read `source/products.h` first for the arithmetic, then `passes.py`.
"""
