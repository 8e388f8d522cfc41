"""`wager inspect`: what a model file or folder contains, whether it fits a target, and what is unused.

Only configs, headers and tokenizers are read, no weights. A fault is a finding, so that a broken file shows
everything else that it has.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wager.cli.doctor_checks import Finding, local_folder, run_check
from wager.errors import InputError
from wager.fetched import fetched_path
from wager.gguf.header import is_gguf, read_header

if TYPE_CHECKING:
    from wager.nn.weights import WeightReader

_SHOWN_NAMES = 12


@dataclass
class _Contents:
    """What is known of a model so far."""

    path: Path
    values: dict[str, Any] = field(default_factory=dict)
    kind: str = ""
    """The kind of drafter that the config describes; a decoder's is `chain`, because it can be one."""
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The tensors that the model needs."""


def inspect(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A GGUF file, a model folder or a known name.")],
    target: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Check whether the model fits this target as a drafter."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Show what a model file or folder contains, whether it fits a target, and what is unused.

    The exit status is 0 if the model can be used, and 2 if it cannot or does not fit the target.
    """
    findings = list(_findings(_place(path, "path"), None if target is None else _place(target, "target")))
    if as_json:
        typer.echo(json.dumps([one._asdict() for one in findings], indent=1, ensure_ascii=False))
    else:
        width = max(len(one.name) for one in findings)
        for one in findings:
            typer.echo(f"{one.status:<4}  {one.name:<{width}}  {one.detail}".rstrip())
    raise typer.Exit(2 if any(one.status == "fail" for one in findings) else 0)


def _place(name: str, option: str) -> Path:
    """Returns the place of a model on this machine; nothing is downloaded."""
    found = local_folder(name)
    if found is None:
        hint = f": `wager fetch {name}` brings it" if fetched_path(name) is not None else ""
        raise InputError(f"{name} is neither a GGUF file nor a model folder on this machine{hint}", option)
    return found


def _findings(path: Path, target: Path | None) -> Iterator[Finding]:
    contents = _Contents(path)
    if is_gguf(path):
        yield from run_check("file", lambda: _file(path))
    else:
        yield Finding("folder", "ok", str(path))
    yield from run_check("config", lambda: _config(contents))
    yield from run_check("tensors", lambda: _tensors(contents))
    if contents.kind != "block":
        yield from run_check("tokenizer", lambda: _words(path))
    if is_gguf(path) and contents.values:
        yield from run_check("unused keys", lambda: _unused_keys(contents))
    if target is not None and contents.values:
        yield from run_check("target", lambda: _fit(contents, target))


def _file(path: Path) -> Iterator[Finding]:
    header = read_header(path)
    size = path.stat().st_size / 1e6
    detail = f"GGUF version {header.version}, {size:.1f} MB, {len(header.tensors)} tensors"
    yield Finding("file", "ok", f"{path}: {detail}, {len(header.metadata)} keys")
    yield Finding("architecture", "ok", header.architecture)
    names = [header.metadata.get(f"general.{key}") for key in ("name", "license")]
    if any(names):
        yield Finding("name, licence", "ok", ", ".join(str(one) for one in names if one))


def _config(contents: _Contents) -> Iterator[Finding]:
    """Reads the config, and notes the tensors that it asks for."""
    from wager.draft import kind_of
    from wager.nn.weights import read_config

    values = read_config(contents.path)
    kind = kind_of(values)
    yield from _block(contents, values) if kind == "block" else _decoder(contents, values)
    contents.values, contents.kind = values, kind


def _block(contents: _Contents, values: dict[str, Any]) -> Iterator[Finding]:
    from wager.nn.gguf_convert import drafter_shapes
    from wager.nn.models.dflash_spec import read_spec

    spec = read_spec(values)
    contents.shapes = drafter_shapes(spec)
    yield Finding("model", "ok", f"block drafter, {spec.num_layers} layers x {spec.hidden_size}")
    yield _sizes(spec)
    features = f"outputs of target layers {list(spec.target_layer_ids)}, mask token {spec.mask_token_id}"
    yield Finding("drafter", "ok", f"blocks of {spec.block_size}, {features}")


def _decoder(contents: _Contents, values: dict[str, Any]) -> Iterator[Finding]:
    from wager.nn.models import read_spec
    from wager.nn.models.tensors import decoder_shapes

    spec = read_spec(values)
    contents.shapes = decoder_shapes(spec)
    size = f"{spec.num_layers} layers x {spec.hidden_size}, {spec.vocab_size} tokens"
    tied = ", tied head" if spec.tie_embeddings else ""
    yield Finding("model", "ok", f"target of the type {spec.model_type}, {size}{tied}")
    yield _sizes(spec)
    yield Finding("context", "ok", f"{spec.max_position} positions")


def _sizes(spec: Any) -> Finding:
    heads = f"{spec.num_heads}/{spec.num_kv_heads} heads of {spec.head_dim}, ffn {spec.intermediate_size}"
    rope = spec.rope
    scaling = "" if rope.type == "default" else f", {rope.type} x {rope.factor:g}"
    windows = sorted({window for window in spec.windows if window})
    sliding = f", windows of {windows[0]}" if windows else ""
    return Finding("sizes", "ok", f"{heads}, rope theta {rope.theta:g}{scaling}{sliding}, eps {spec.eps:g}")


def _tensors(contents: _Contents) -> Iterator[Finding]:
    import torch

    from wager.nn.weights import WeightReader

    reader = WeightReader(contents.path, torch.float32)
    yield from _types(reader)
    if not contents.shapes:
        return
    missing = [name for name in contents.shapes if name not in reader]
    if missing:
        yield Finding("missing tensors", "fail", _listed(missing))
    for name, shape in contents.shapes.items():
        if name in reader and reader.shape(name) != shape:
            yield Finding("shape", "fail", f"{name} has {list(reader.shape(name))}, needed is {list(shape)}")
    unused = sorted(set(reader.names()) - set(contents.shapes))
    yield Finding("unused tensors", "warn" if unused else "ok", _listed(unused) if unused else "none")


def _types(reader: WeightReader) -> Iterator[Finding]:
    """Says in which types the tensors are stored, and which of them cannot be read."""
    from wager.gguf.types import READABLE

    counts: dict[str, list[int]] = {}
    for name in reader.names():
        count = counts.setdefault(reader.type_name(name), [0, 0])
        count[0] += 1
        count[1] += reader.num_bytes(name)
    ordered = sorted(counts.items(), key=lambda item: -item[1][1])
    parts = [f"{number} {kind} ({size / 1e6:.1f} MB)" for kind, (number, size) in ordered]
    yield Finding("tensors", "ok", ", ".join(parts))
    unreadable = [kind for kind in counts if is_gguf(reader.folder) and kind not in READABLE]
    if unreadable:
        yield Finding("types", "fail", f"{', '.join(unreadable)} cannot be read; {', '.join(READABLE)} can")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return ", ".join(names[:_SHOWN_NAMES]) + more


def _words(path: Path) -> Iterator[Finding]:
    from wager.text.chat import ChatTemplate
    from wager.text.tokenizer import Tokenizer, has_tokenizer

    if not has_tokenizer(path):
        yield Finding("tokenizer", "warn", "none: prompts and outputs are token ids")
        return
    tokenizer = Tokenizer.from_folder(path)
    split = read_header(path).metadata.get("tokenizer.ggml.pre", "") if is_gguf(path) else ""
    details = [f"{tokenizer.vocab_size} tokens", *([f"split as {split}"] if split else [])]
    details.append(f"end-of-text ids {list(tokenizer.eos_ids)}")
    yield Finding("tokenizer", "ok", ", ".join(details))
    template = ChatTemplate.from_folder(path)
    yield Finding("chat template", "ok", "none" if template is None else ", ".join(template.sources))


def _unused_keys(contents: _Contents) -> Iterator[Finding]:
    """Lists the keys of model and tokenizer that nothing reads; one of the model may mean a lost feature."""
    header = read_header(contents.path)
    unused = sorted(set(header.metadata) - header.used)
    of_model = [key for key in unused if key.startswith(f"{header.architecture}.")]
    yield Finding("unused keys", "warn" if of_model else "ok", _listed(of_model) if of_model else "none")
    of_words = [key for key in unused if key.startswith("tokenizer.")]
    if of_words and contents.kind != "block":
        yield Finding("unused keys", "ok", f"{_listed(of_words)} (of the tokenizer)")


def _fit(contents: _Contents, target: Path) -> Iterator[Finding]:
    from wager.draft import DRAFTERS
    from wager.nn.models import read_spec
    from wager.nn.weights import read_config

    spec = read_spec(read_config(target))
    yield Finding("target", "ok", f"{target.name}: {spec.num_layers} layers x {spec.hidden_size}")
    for check in DRAFTERS[contents.kind].check(contents.values, spec):
        yield Finding(f"fit: {check.name}", check.status, check.detail)
