"""MAKING DRAFTERS (and the demo pair).

Read drafter.py first (what a block drafter learns from), then loop.py (updates, schedule, checkpoints) and
acceptance.py (how good it is). corpus.py, tokenizer.py and target.py make the demo target, generate.py its
own text; heldout.py judges both, and recipe.py runs it all. May import levels 0 to 2, torch and transformers;
never `engine` or `server`: text written by a target reaches it as token ids.
"""
