"""HOW FAST IS IT, AND IS THE TEXT THE SAME?  `wager bench` as a library.

Policies and other people's decoders answer the same prompts in one process, each beside plain decoding. Level
6: it may import anything; nothing below imports it. No torch in suites, plan, figures, report and the drawing
files. Read runs.py first; what is measured is in records.py, what is made of it in figures.py.
"""
