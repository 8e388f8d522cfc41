"""Products of quantised weights with rounded rows: exact sums, for every form, size and vector width."""

import subprocess

import pytest
import torch
from torch import Tensor

from wager.errors import ConfigError
from wager.nn.gguf_blocks import GroupedWeight
from wager.nn.native import build
from wager.nn.native.head import NativeHead
from wager.nn.native.library import Library
from wager.nn.native.loader import PassOptions
from wager.nn.native.pack import Packer, Storage, Store, quantise

FORMS = {
    "Q4_0": (4, 32, False),
    "Q4_1": (4, 32, True),
    "Q8_0": (8, 32, False),
    "Q5_K": (8, 32, True),
    "Q6_K": (8, 16, False),
    "joined": (8, 16, True),
}
"""Bits, inputs of a group, and whether there are offsets."""
MOST = {1: 127, 2: 32512}
WIDTHS = {
    "avx512 without dot products": ["-mno-avx512vnni"],
    "avx2 with dot products": ["-mno-avx512f"],
    "avx2": ["-mno-avx512f", "-mno-avxvnni"],
    "plain": ["-mno-avx512f", "-mno-avx2", "-mno-fma"],
}


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make(form: str, outputs: int, inputs: int, exact: bool = False, half: bool = True) -> GroupedWeight:
    """A random weight with extreme codes; with `exact`, all scales and offsets are powers of two."""
    bits, group, has_offsets = FORMS[form]
    low, high = (0, 16) if bits == 4 and has_offsets else (-(1 << bits - 1), 1 << bits - 1)
    codes = torch.randint(low, high, (outputs, inputs), generator=random(1), dtype=torch.int16).to(torch.int8)
    codes[0], codes[1] = low, high - 1

    def numbers(seed: int) -> Tensor:
        if exact:
            return torch.randint(0, 2, (outputs, inputs // group), generator=random(seed)).float() * 0.5 + 0.5
        found = torch.rand(outputs, inputs // group, generator=random(seed)) * 0.1
        return found.half().float() if half else found

    return GroupedWeight(codes, numbers(2), -numbers(3) if has_offsets else None, bits)


def product(library: Library, weight: GroupedWeight | Tensor, x: Tensor, limbs: int) -> Tensor:
    storage = Storage(quantised=isinstance(weight, Tensor), limbs=limbs)
    packer = Packer(library.lanes, Store(1 << 20), storage)
    return NativeHead(library, packer, packer.matrix(weight), weight.shape[0])(x)


def rounded(x: Tensor, group: int, limbs: int) -> Tensor:
    """What a product multiplies with, in float64."""
    groups = x.view(x.shape[0], -1, group)
    largest = groups.abs().amax(dim=2, keepdim=True)
    shares = torch.where(largest > 0, torch.full_like(largest, MOST[limbs]) / largest, 0.0)
    whole = (groups.double() * shares.double()).round()
    return (whole * (largest / MOST[limbs]).double()).view(x.shape)


@pytest.mark.parametrize("limbs", [1, 2])
@pytest.mark.parametrize("form", list(FORMS))
def test_sums_of_groups_are_exact(library: Library, form: str, limbs: int) -> None:
    weight, x = make(form, 37, 96, exact=True), whole_rows(11, 96, limbs)
    assert torch.equal(product(library, weight, x, limbs), added_up(weight, x))


def added_up(weight: GroupedWeight, x: Tensor) -> Tensor:
    """The sums of whole rows: exact in a group, and float32 from group to group.

    Scales and offsets are powers of two: float32 multiplies exactly, and a fused addition is a plain one.
    """
    found = torch.zeros(x.shape[0], weight.shape[0])
    for g in range(weight.scales.shape[1]):
        own = slice(g * weight.group, (g + 1) * weight.group)
        whole = x[:, own].long() @ weight.codes[:, own].long().T
        found = found + whole.float() * weight.scales[:, g]
        if weight.offsets is not None:
            found = found + x[:, own].sum(dim=1, keepdim=True) * weight.offsets[:, g]
    return found


def whole_rows(count: int, inputs: int, limbs: int) -> Tensor:
    """Rows of whole numbers that rounding leaves as they are, the first ones with the largest sums."""
    x = torch.randint(-100, 101, (count, inputs), generator=random(4)).float()
    x[:, ::16] = MOST[limbs]
    x[1] = -MOST[limbs]
    x[0, :32] = MOST[limbs]
    return x


@pytest.mark.parametrize("limbs", [1, 2])
@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("form", list(FORMS))
def test_rows_are_rounded_as_stated(library: Library, form: str, half: bool, limbs: int) -> None:
    weight, x = make(form, 70, 160, half=half), torch.randn(5, 160, generator=random(5)) * 3
    x[3, 32:64] = 0.0
    want = rounded(x, weight.group, limbs) @ weight.weight.double().T
    found = product(library, weight, x, limbs)
    size = x.double().abs() @ weight.weight.double().abs().T
    assert float(((found - want).abs() / size).max()) < 1e-6
    exact = x.double() @ weight.weight.double().T
    assert float(((found - exact).abs() / size).max()) < {1: 1e-2, 2: 4e-5}[limbs]


@pytest.mark.parametrize("limbs", [0, 1, 2])
@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize("outputs", [1, 33, 200])
def test_a_row_is_the_same_in_any_company(library: Library, form: str, limbs: int, outputs: int) -> None:
    weight = make(form, max(outputs, 2), 64)
    x = torch.randn(70, 64, generator=random(6))
    alone = torch.cat([product(library, weight, x[i : i + 1], limbs) for i in range(70)])
    for count in (*range(2, 20), 25, 37, 64, 65, 70):
        assert torch.equal(product(library, weight, x[:count], limbs), alone[:count])


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_threads_change_nothing(library: Library, threads: int) -> None:
    weight, x = make("Q4_1", 300, 128), torch.randn(9, 128, generator=random(7))
    torch.set_num_threads(2)
    want = product(library, weight, x, 2)
    torch.set_num_threads(threads)
    assert torch.equal(product(library, weight, x, 2), want)


@pytest.mark.parametrize("limbs", [1, 2])
@pytest.mark.parametrize("inputs", [1, 31, 37, 64])
def test_int8_weights_of_any_width(library: Library, inputs: int, limbs: int) -> None:
    weight, x = torch.randn(40, inputs, generator=random(8)), torch.randn(7, inputs, generator=random(9))
    made = quantise(weight)
    padded = torch.nn.functional.pad(x, (0, -inputs % 32))
    want = rounded(padded, 32, limbs) @ made.weight.double().T
    assert float((product(library, weight, x, limbs) - want).abs().max() / want.abs().max()) < 1e-6


def test_scales_of_int8_become_float16_where_that_costs_nothing() -> None:
    made = quantise(torch.cat((torch.randn(4, 64), torch.randn(4, 64) * 1e-9)))
    assert torch.equal(made.scales[:4].half().float(), made.scales[:4])
    assert not torch.equal(made.scales[4:].half().float(), made.scales[4:])
    assert int(made.codes.abs().amax(dim=1).min()) >= 126


@pytest.mark.parametrize("limbs", [1, 2])
def test_strange_numbers_stay_visible(library: Library, limbs: int) -> None:
    weight, x = make("Q4_1", 20, 64), torch.ones(5, 64)
    x[1, 40], x[2, 3], x[3], x[4] = float("nan"), float("inf"), 0.0, 1e-39
    found = product(library, weight, x, limbs)
    assert torch.isfinite(found[[0, 3, 4]]).all() and not torch.isfinite(found[1:3]).any()
    assert float(found[3].abs().max()) == 0.0 and float(found[4].abs().max()) < 1e-30


@pytest.fixture(scope="module", params=list(WIDTHS))
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Library:
    """The library with narrower vectors or fewer instructions than this machine has."""
    command = build.compiler()
    if command is None:
        pytest.skip("no C++ compiler here")
    path = tmp_path_factory.mktemp("width") / "passes.so"
    flags = [*build.FLAGS, "-O1", *WIDTHS[request.param]]
    sources = ["-o", str(path), *(str(build.SOURCE / name) for name in build.MAIN)]
    if subprocess.run([*command, *flags, *sources], capture_output=True).returncode:
        pytest.skip("this compiler does not know these vectors")
    return Library(path)


@pytest.mark.parametrize("limbs", [1, 2])
@pytest.mark.parametrize("form", list(FORMS))
def test_every_width_has_the_same_sums(other: Library, library: Library, form: str, limbs: int) -> None:
    weight, x = make(form, 37, 96, exact=True), whole_rows(11, 96, limbs)
    assert torch.equal(product(other, weight, x, limbs), product(library, weight, x, limbs))
    if other.simd == "plain":  # it has no fused multiply-add
        return
    weight, x = make(form, 37, 96), torch.randn(13, 96, generator=random(10))
    assert torch.equal(product(other, weight, x, limbs), product(library, weight, x, limbs))


@pytest.mark.parametrize("form", list(FORMS))
def test_every_width_widens_to_the_same_floats(other: Library, library: Library, form: str) -> None:
    weight, x = make(form, 37, 96), torch.eye(96)[:50]
    found = product(other, weight, x, 0)
    assert torch.equal(found, product(library, weight, x, 0))
    assert torch.equal(found, weight.weight.T[:50])


def test_what_the_setting_means() -> None:
    def limbs(weights: str, activations: str) -> int:
        return PassOptions("on", weights, activations=activations).storage.limbs

    assert [limbs("auto", words) for words in ("auto", "full", "int16", "int8")] == [2, 0, 2, 1]
    assert limbs("int8", "auto") == 1 and limbs("int8", "int16") == 2
    assert PassOptions("on", activations="int16").for_drafter("on").storage.limbs == 1


@pytest.mark.parametrize(
    ("native", "weights", "activations", "kernels"),
    [
        ("on", "auto", "int4", False),
        ("off", "auto", "int16", False),
        ("on", "auto", "int8", True),
        ("on", "int8", "full", False),
    ],
)
def test_what_cannot_be_done_is_refused(native: str, weights: str, activations: str, kernels: bool) -> None:
    with pytest.raises(ConfigError, match=f"activations = '{activations}'"):
        PassOptions(native, weights, kernels=kernels, activations=activations)


def test_a_model_without_quantised_weights_refuses() -> None:
    options = PassOptions("on", activations="int16")
    with pytest.raises(ConfigError, match="only quantised weights"):
        options.check_activations(False)
    options.check_activations(True)
    PassOptions("on", "int8", activations="int16").check_activations(False)
