"""Request bodies, one file per API: which fields exist, their types, and which fields are refused.

Every field is supported, refused with a reason, or declared with `no_effect`. An unknown field is refused,
because it might change the answer. The route of each API gives the fields their meaning.
"""
