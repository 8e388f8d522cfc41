"""HOW IS WAGER RUN FROM A SHELL? One file per verb; a verb's file is imported only when the verb is called.

May import anything. A verb is a plain function whose parameters are its flags; it prints results to stdout,
returns nothing, and lets every WagerError rise to main.py, which alone decides how errors look. Read main.py
first.
"""
