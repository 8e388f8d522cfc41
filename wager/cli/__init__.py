"""The command line: one file per verb. A verb's file is imported only when the verb is called.

May import anything. A verb is a plain function whose parameters are its flags. It prints its results to
stdout, returns nothing, and does not catch WagerError: main.py prints errors. Read main.py first.
"""
