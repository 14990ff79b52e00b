"""`edgespec show`: a model file's facts, one a line, with nothing in them interpreted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from edgespec.system.size import format_size
from edgespec.terminal.grid import grid, is_narrow, wide_console
from edgespec.terminal.text_io import printable


def print_model(facts: Mapping[str, Any]) -> None:
    """A model file's facts, one a line."""
    console = wide_console()
    table = grid({"style": "bold", "no_wrap": True}, {"overflow": "fold"})

    def row(name: str, value: str) -> None:
        table.add_row(name, Text(printable(value)))

    row("file", f"{facts['path']}, {format_size(facts['file_bytes'])}")
    row("name", facts["name"] or "none")
    row("architecture", f"{facts['architecture']}, {_count(facts['parameters'])} parameters")
    row("quantisation", _quantisation(facts["quantisation"]))
    row(
        "shape",
        f"{facts['layers']} layers of width {facts['width']}, feed-forward width "
        f"{facts['feed_forward_width']}, {facts['heads']} attention heads of width "
        f"{facts['head_width']}, {facts['kv_heads']} key-value heads",
    )
    for name, value in _parts(facts):
        row(name, value)
    row("context", f"{facts['context_length']} tokens")
    row("vocabulary", f"{facts['vocabulary']} tokens")
    row("tokenizer", _tokenizer(facts["tokenizer"]))
    row("chat template", _shortened(facts["chat_template"]))
    if facts["adapter"] is not None:
        row("adapter", _adapter(facts["adapter"]))
    console.print(table)
    console.print(Text("\nmetadata", style="bold"))
    listing = grid({"no_wrap": True}, {"overflow": "fold"})
    for key, value in facts["metadata"].items():
        shown = printable(key), printable(_shortened(str(value)))
        if is_narrow(console):
            console.print(Text(" = ".join(shown)))
        else:
            listing.add_row(*map(Text, shown))
    console.print(listing)
    if "tensors" in facts:
        console.print(Text("\ntensors", style="bold"))
        _print_tensors(console, facts["tensors"])


def _parts(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What a model has beside attention to everything and dense layers."""
    layers, mixers = facts["layers"], facts["mixers"]
    if mixers.keys() != {"attention"}:
        counts = [f"{kind} in {count}" for kind, count in mixers.items()]
        yield "mixers", f"{', '.join(counts)} of {layers} layers"
    if facts["window"]:
        windowed = facts["layers_with_window"]
        yield "windows", f"{facts['window']} tokens in {windowed} of {layers} layers"
    if facts["experts"]:
        shared = ", and one that every token uses" * facts["shared_expert"]
        yield (
            "experts",
            f"{facts['active_experts']} of {facts['experts']} of width {facts['expert_width']} for "
            f"each token{shared}, in {facts['layers_with_experts']} of {layers} layers",
        )


def _print_tensors(console: Console, tensors: Sequence[Mapping[str, Any]]) -> None:
    table = grid({"overflow": "fold"}, {}, {}, {"justify": "right"})
    for info in tensors:
        shape = " x ".join(map(str, info["shape"]))
        table.add_row(
            Text(printable(info["name"])), info["type"], shape, format_size(info["bytes"])
        )
    console.print(table)


def _adapter(facts: Mapping[str, Any]) -> str:
    if "error" in facts:
        return f"not used: {facts['error']}"
    exits = "; ".join(
        f"layer {fit['layer']} predicts {100 * fit['before']:.1f} -> {100 * fit['after']:.1f} % "
        f"of tokens{'' if fit['pays'] else ', no gain'}"
        for fit in facts["exits"]
    )
    return f"{facts['path']}: {exits}"


def _count(number: int) -> str:
    for unit, scale in (("billion", 10**9), ("million", 10**6), ("thousand", 10**3)):
        if number >= scale:
            return f"{number / scale:.3g} {unit}"
    return str(number)


def _quantisation(types: Mapping[str, Mapping[str, int]]) -> str:
    parts = (
        f"{name} {format_size(values['bytes'])} in {values['tensors']} "
        f"tensor{'' if values['tensors'] == 1 else 's'}"
        for name, values in types.items()
    )
    return ", ".join(parts)


def _tokenizer(facts: Mapping[str, Any]) -> str:
    kinds = {"llama": "SentencePiece-style", "gpt2": "byte-level BPE"}
    kind = kinds.get(facts["kind"], facts["kind"])
    text = f"{kind}, pre-tokenizer {facts['pre']}" if "pre" in facts else kind
    if "error" in facts:
        return f"{text}; unusable: {facts['error']}"
    ends = " ".join(facts["end_tokens"].values()) or "none"
    bos = (
        "adds a beginning-of-text token" if facts["adds_bos"] else "adds no beginning-of-text token"
    )
    return f"{text}; end tokens: {ends}; {bos}"


def _shortened(text: str | None) -> str:
    if text is None:
        return "none; use `edgespec run --raw` to continue a text"
    line = " ".join(text.split())
    return line if len(line) <= 100 else f"{line[:100]}… ({len(text)} characters)"
