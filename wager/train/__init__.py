"""MAKING DRAFTERS (and the demo pair).

Read drafter.py first (the loss of a block drafter), then loop.py (updates, schedule, checkpoints) and
acceptance.py (the quality of a drafter). drafter_training.py trains a drafter from a corpus to a folder, and
target_training.py a small target; settings.py has all settings. recipe.py creates the demo pair, heldout.py
measures it, and grow.py enlarges a pair. recipe_chat.py makes the drafter of a chat model; the questions are
in questions.py, and the target answers them through stream_writer.py. May import levels 0 to 2, torch and
transformers; never `engine` or `server`.
"""
