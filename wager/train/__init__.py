"""MAKING DRAFTERS (and the demo pair).

Read drafter.py first (what a block drafter learns from), then loop.py (updates, schedule, checkpoints) and
acceptance.py (how good it is). tokenizer.py, target.py and corpus.py make the demo target. May import levels 0
to 2, torch and transformers; never `engine` or `server`: text written by a target reaches it as token ids.
"""
