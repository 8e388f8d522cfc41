"""WHO RUNS WHEN? The nine-stage step, the scheduler, sequences, and the engine that holds them together.

Read step.py first: plan, bet, draft, arrange, verify, accept, commit, emit, learn. Then pipeline.py and
prelaunch/: what a device runs before the host knows all of its input. scheduler.py and sequence.py know no
torch. engine.py is what `llm` and `server` use, in a thread of its own (thread.py), and assemble.py builds it
from a config. drafting.py calls the drafters, delivery.py makes the events, learning.py tells the policy.
calibrate.py measures what passes cost, prompt_scores.py reads prompts for their log-probabilities, and
trace_recorder.py records traces. May import levels 0 to 3.
"""
