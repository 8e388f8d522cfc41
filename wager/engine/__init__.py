"""WHO RUNS WHEN? The nine-stage step, the scheduler, sequences, and the engine that holds them together.

Read step.py first: plan, bet, draft, arrange, verify, accept, commit, emit, learn. scheduler.py and
sequence.py know no torch. engine.py is what `llm` and `server` talk to, drafting.py its side towards the
drafters; ahead.py, unseen.py and supposed.py are what runs ahead of the host on a device. assemble.py builds
an engine from a config, calibrate.py finds out what its passes cost, shadow.py records traces with one. May
import levels 0 to 3.
"""
