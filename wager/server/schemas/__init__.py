"""Bodies of requests, one file per dialect: which fields exist, of which types, and which are refused.

Fields that change the answer are honoured or refused; an unknown one is refused, since it might. Those that
clients send and that change nothing are listed as harmless. Meaning is given to them elsewhere: a dialect's
file turns its body into an `Ask` or a `Talk`.
"""
