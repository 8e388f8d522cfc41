"""Wager's tests: the same folders as the package, plus architecture/ and equivalence/."""
