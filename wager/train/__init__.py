"""MAKING DRAFTERS (and the demo pair).

Read drafter.py first (what a block drafter learns from), then loop.py (updates, schedule, checkpoints) and
acceptance.py (how good it is). course.py is a drafter's whole way from a corpus to a folder, target_course.py
a small target's; settings.py has every knob. recipe.py makes the demo pair, heldout.py judges it, grow.py
enlarges a pair. May import levels 0 to 2, torch and transformers; never `engine` or `server`: text written by
a target reaches it as token ids.
"""
