"""HOW FAST IS IT, AND IS THE TEXT THE SAME?  The library behind `wager bench`.

Policies and other decoders answer the same prompts in one process, each next to plain decoding. Level 6: it
may import anything, and no other room imports it. suites, plan, figures, report and the drawing files do not
import torch. Read runs.py first; records.py has the measured values, and figures.py computes the figures from
them.
"""
