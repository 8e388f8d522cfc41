"""HOW FAST IS IT? Runnable benchmarks, one file each: `python -m bench.NAME`.

Each prints a table and leaves its numbers in results/NAME.json with machine, commit, command and settings.
May import anything of wager; nothing imports it. Read results.py for what every result file holds, then
decision.py.
"""
