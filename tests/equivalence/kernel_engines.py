"""Engines whose passes are kernels, in Triton's interpreter or on a CUDA device, and what they are asked."""

from typing import Any

import pytest
import torch

from tests.equivalence.world import Job, World, make_engine, prompt
from wager.engine.engine import Engine
from wager.records import SamplingParams

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MARKS = [pytest.mark.gpu] if DEVICE == "cuda" else []


def engine_of(world: World, policy: str, **settings: Any) -> Engine:
    values = {"dtype": "float32", "device": DEVICE, "max_rows": 4, "max_step_tokens": 64, "calibrate": False}
    return make_engine(world, "block", policy, **values | settings)


def jobs(temperature: float, **params: Any) -> list[Job]:
    sampling = SamplingParams(temperature=temperature, max_tokens=10, seed=3, ignore_eos=True, **params)
    return [Job(prompt(index, length, period=4), sampling) for index, length in enumerate((5, 23, 9))]
