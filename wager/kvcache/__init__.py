"""WHERE DOES MEMORY LIVE? Pages of KV positions: who holds them, which are shared, where their tensors are.

`pages` and `prefix` import level 0 alone and run without torch; `pool` and `commit` hold the tensors and may
import torch and levels 0-1. A page is a fixed run of KV positions, and a page id means the same place in
every layer of the target and of the drafter, so whoever holds the page holds both contexts.

Read `pages.py` first.
"""
