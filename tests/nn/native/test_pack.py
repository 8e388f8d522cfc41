"""The memory of packed weights: what it promises its readers, and where its large pages come from."""

import sys
from pathlib import Path

import pytest
import torch

from wager.nn.native.pack import Store


def test_what_is_placed_stays_and_begins_a_line() -> None:
    store = Store(1 << 12)
    parts = [torch.arange(count, dtype=torch.float32) for count in (3, 17, 40)]
    homes = [store.place(part) for part in parts]
    for home, part in zip(homes, parts, strict=True):
        assert home.data_ptr() % 64 == 0
        assert torch.equal(home.view(torch.float32), part)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_private_and_asks_for_large_pages() -> None:
    store = Store(8 << 20)
    flags = _flags(store.place(torch.ones(1)).data_ptr())
    assert "hg" in flags and "sh" not in flags


def _flags(address: int) -> list[str]:
    """The kernel's flags of the mapping an address lies in."""
    inside = False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        head = line.split(maxsplit=1)[0]
        if "-" in head and not head.endswith(":"):
            low, high = (int(end, 16) for end in head.split("-"))
            inside = low <= address < high
        elif inside and head == "VmFlags:":
            return line.split()[1:]
    return []
