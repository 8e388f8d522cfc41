"""Gumbel noise inside a kernel: bit-identical to `wager/nn/noise.py` and `tree/noise.py`.

It is a pure function of (seed, absolute position, token): hash words are 32-bit integers that wrap, and
logarithms are computed in float64 and rounded once. Noise is computed where a score is read and never stored.
`sample.py` and `top_logprobs.py` use it.
"""

# Arguments of kernels are typed by their compiler.
# mypy: allow-incomplete-defs

import triton
import triton.language as tl


@triton.jit
def _mix(word):
    word = (word ^ (word >> 16)) * 0x85EBCA6B
    word = (word ^ (word >> 13)) * 0xC2B2AE35
    return word ^ (word >> 16)


@triton.jit
def position_words(seed, position):
    """Returns the two words of a seed (int64) and a position (int64), as uint32."""
    low = seed.to(tl.uint32)
    high = (seed >> 32).to(tl.uint32)
    place = position.to(tl.uint32)
    first = _mix(_mix(low + 0x9E3779B9) ^ high)
    second = _mix(_mix(high + 0x7F4A7C15) ^ low)
    return _mix(first + place * 0x9E3779B1), _mix(second ^ (place * 0x85EBCA77))


@triton.jit
def gumbel(first, second, token):
    """Returns standard Gumbel noise of tokens at a position, float32."""
    word = _mix(_mix(token.to(tl.uint32) * 0xC2B2AE3D + first) ^ second)
    uniform = (word.to(tl.float64) + 0.5) * 2.3283064365386963e-10
    return (-tl.log(-tl.log(uniform))).to(tl.float32)


@triton.jit
def scored(x, token, temperature, seed, position):
    """Returns the value that a token is chosen by: x / temperature + noise, or x if the temperature is 0."""
    scores = x
    if temperature > 0.0:
        first, second = position_words(seed, position)
        # NOTE: a plain division is not correctly rounded on the device, and a choice may depend on one bit.
        scores = tl.div_rn(x, temperature) + gumbel(first, second, token)
    return scores
