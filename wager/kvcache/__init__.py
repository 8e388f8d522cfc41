"""WHERE DOES MEMORY LIVE? Pages of KV positions: their reference counts, their sharing, and their tensors.

`pages` and `prefix` import level 0 only and run without torch; `pool` and `commit` hold the tensors and may
import torch and levels 0-1. A page is a fixed run of KV positions. A page id denotes the same positions in
every layer of the target and of the drafter, so a reference to a page covers both contexts. Read `pages.py`
first.
"""
