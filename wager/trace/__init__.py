"""WHAT WOULD ANOTHER POLICY HAVE DONE? Records, replays and compares policies.

May import level 0, `wager.policy`, `wager.tree` and numpy; never torch, never a model. Read replay.py first,
then format.py (the file), costs.py (the time of steps), hindsight.py (references that know the recorded
outcome) and simulate.py (the comparison of many cells). docs/trace-format.md describes the file format.
"""

from wager.trace.bod_range import BodRange
from wager.trace.costs import StepCosts, load_costs, step_costs
from wager.trace.format import PADDING, Trace, TraceFile, demo_traces, load_traces, save_traces
from wager.trace.hindsight import BestFixed, best_fixed, oracle_chain
from wager.trace.replay import Noise, Replay, ReplayOptions, Step, replay
from wager.trace.simulate import Cell, Comparison, Content, Run, SimulateOptions, compare, plan, select

__all__ = [
    "PADDING",
    "BestFixed",
    "BodRange",
    "Cell",
    "Comparison",
    "Content",
    "Noise",
    "Replay",
    "ReplayOptions",
    "Run",
    "SimulateOptions",
    "Step",
    "StepCosts",
    "Trace",
    "TraceFile",
    "best_fixed",
    "compare",
    "demo_traces",
    "load_costs",
    "load_traces",
    "oracle_chain",
    "plan",
    "replay",
    "save_traces",
    "select",
    "step_costs",
]
