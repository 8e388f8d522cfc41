"""The product of the head in native code: the exact one, and narrower ones for guesses.

A draft mostly waits for its head to be read, so the one for guesses has few bits, and may have only the most
frequent tokens. networks.py makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import byref
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wager.nn.native.library import Library, Matrix, num_threads, raise_refusal
from wager.nn.native.pack import NIBBLES, Packer


class Workspace:
    """Memory for passes, as large as the largest pass so far needed."""

    def __init__(self) -> None:
        self._bytes = torch.empty(1 << 20, dtype=torch.uint8)

    def run(self, call: Any, *arguments: Any) -> None:
        """Calls the library with enough memory; raises the error of a refused call."""
        held, threads = self._bytes, num_threads()
        code = call(*arguments, held.data_ptr(), held.shape[0], threads)
        if code > 0:
            self._bytes = held = torch.empty(code + code // 4, dtype=torch.uint8)
            code = call(*arguments, held.data_ptr(), held.shape[0], threads)
        if code < 0:
            raise_refusal(code)


class NativeHead:
    """The product of the head."""

    def __init__(
        self,
        library: Library,
        packer: Packer,
        matrix: Matrix,
        num_outputs: int,
        token_ids: Tensor | None = None,
    ) -> None:
        """`packer` owns the memory of the matrix; `token_ids` are the tokens of its outputs, None: all."""
        self.token_ids = token_ids
        self._library, self._packer, self.num_outputs = library, packer, num_outputs
        self.matrix = matrix
        self._pointer, self._scratch = byref(matrix), Workspace()

    def rounded(self) -> NativeHead | None:
        """Returns the same head for activations of 8 bits, with the same memory; None without codes."""
        own = self.matrix
        if own.kind < NIBBLES:
            return None
        matrix = Matrix.from_buffer_copy(own)
        matrix.limbs = 1
        return NativeHead(self._library, self._packer, matrix, self.num_outputs)

    def __call__(self, hidden: Tensor) -> Tensor:
        hidden = hidden.contiguous()
        out = torch.empty(hidden.shape[0], self.num_outputs)
        self._scratch.run(
            self._library.project,
            self._pointer,
            hidden.data_ptr(),
            hidden.shape[0],
            out.data_ptr(),
            self.num_outputs,
        )
        return out


class Heads(NamedTuple):
    """The exact head for the target's choices, and what makes one for guesses of some tokens."""

    exact: NativeHead
    make_draft_head: Callable[[Sequence[int]], NativeHead]
