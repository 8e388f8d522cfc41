"""The figures of docs/gguf.md are those of the result files; the reference of the parity is the model."""

import json
import re
from pathlib import Path
from typing import Any

import torch

from bench.cpu.gguf_parity import load_reference, parting
from tests.architecture.layout import ROOT
from tests.gguf.files import save_gguf

PAGE = (ROOT / "docs" / "gguf.md").read_text(encoding="utf-8")
WAYS = {
    "as in the file, `--activations full`": "narrow",
    "`--weights full`": "float32",
    "`--weights int8`": "int8",
    "plain torch": "torch",
}


def result(name: str) -> dict[str, Any]:
    found = json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    return dict(found["data"])


def test_the_table_of_passes_is_the_result_file() -> None:
    data = result("gguf_passes")
    table = PAGE.split("<!-- table: gguf passes -->")[1].split("<!-- end -->")[0]
    rows = re.findall(r"^\| (.+?) \| (\d.+) \|$", table, flags=re.MULTILINE)
    assert [name for name, _ in rows] == ["weights", *WAYS]
    for name, cells in rows[1:]:
        *times, memory = cells.split(" | ")
        own = data["milliseconds"][WAYS[name]]
        assert times == [f"{own[count]:.1f}" for count in ("1", "2", "4", "8", "16", "32")]
        assert memory == f"{data['memory_bytes'][WAYS[name]] / 1e6:.0f}"


def test_the_table_of_activations_is_the_result_file() -> None:
    data = result("gguf_activations")
    table = PAGE.split("<!-- table: gguf activations -->")[1].split("<!-- end -->")[0]
    rows = re.findall(r"^\| (.+?) \| (\d.+) \|$", table, flags=re.MULTILINE)
    names = ["int16 activations", "int8 activations", "full activations", "llama.cpp"]
    assert [label for label, _ in rows] == [
        "activations",
        "`int16` (`auto`)",
        "`int8`",
        "`full`",
        "llama.cpp",
    ]
    for name, (_, cells) in zip(names, rows[1:], strict=True):
        *times, memory = cells.split(" | ")
        own = data["milliseconds"][name]
        assert times == [f"{own[count]:.1f}" for count in ("1", "2", "4", "8", "16", "32")]
        num_bytes = data["memory_bytes"].get(name)
        assert memory == ("-" if num_bytes is None else f"{num_bytes / 1e6:.0f}")
    head = data["head_for_guesses"]["shortest"]
    assert f"in {head['8']:.1f} ms, and 16 positions in {head['16']:.1f} ms" in " ".join(PAGE.split())


def test_the_table_of_rounding_is_the_result_file() -> None:
    data = result("gguf_rounding")
    table = PAGE.split("<!-- table: gguf rounding -->")[1].split("<!-- end -->")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\d.+) \|$", table, flags=re.MULTILINE)
    assert [name for name, _ in rows] == ["full", "int16", "int8"]
    for name, cells in rows:
        own = data["scores"][name]
        wanted = [f"{own[key]:.1e}" for key in ("any_position", "last_position")]
        wanted += [f"{own['nats'] / data['positions']:.1e}", str(own["other_best"])]
        assert cells.split(" | ") == [*wanted, str(data["texts_by_rounding"][name]["identical"])]


def test_the_figures_of_parity_are_the_result_file() -> None:
    data = result("gguf_parity")
    text = " ".join(PAGE.split())
    assert data["passed"] and data["identical_texts"] == data["texts"] == 50 and data["tokens"] == 50 * 128
    scores = data["largest_difference_of_scores"]
    for sentence in (
        f"at most {scores['float64']['any_position']:.1e} at any of {data['positions']:,} positions",
        f"at most {scores['native']['last_position']:.1e} at the last position of a prompt natively",
        f"and {scores['plain torch']['last_position']:.1e} in plain torch",
        f"at any position is {scores['native']['any_position']:.1e} natively",
        f"and {scores['plain torch']['any_position']:.1e} in plain torch",
        f"from its own float64 by {scores['transformers']['any_position']:.1e}",
    ):
        assert sentence.replace("e-0", "e-") in text, sentence


def test_the_reference_has_the_weights_of_the_file(tmp_path: Path) -> None:
    wanted = save_gguf(tmp_path / "a.gguf", "llama", "Q4_1", tie_word_embeddings=True)
    found = load_reference(tmp_path / "a.gguf")
    own = dict(wanted.named_parameters())
    assert all(torch.equal(weight, own[name]) for name, weight in found.named_parameters())
    ids = [1, 2, 3]
    with torch.inference_mode():
        scores = found(torch.tensor([ids])).logits[0, -1]
    best, second = (int(token) for token in scores.topk(2).indices)
    assert parting(found, "x", ids, [best, 4], [best, 4]) is None
    parted = parting(found, "x", ids, [second, 4], [best, 4])
    assert parted is not None and parted.position == 0 and parted.gap == float(scores[best] - scores[second])
