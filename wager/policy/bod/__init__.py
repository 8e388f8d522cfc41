"""Bet-Optimal Drafting in closed form: `bod_optimal_bet`, and a controller that learns what the form needs.

Read closed_form.py (the mathematics), fit.py (the estimators), controller.py (the two joined), then policy.py
(the policies `bod` and `bod:tree`). docs/bod.md tells the whole story.
"""

from wager.policy.bod.controller import BODConfig, BODController, BODObservation, bod_optimal_bet

__all__ = ["BODConfig", "BODController", "BODObservation", "bod_optimal_bet"]
