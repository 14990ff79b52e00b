"""Where the error of stored keys and values comes from, and what other forms would do: by oracle.

    python -m lab.kv_forms forms [MODEL...] --text FILE [--forms int8,q4...] [--replies 100]
    python -m lab.kv_forms shorter [MODEL...] --text FILE [--contexts 128,256,512]

All in NumPy and float32 but for what is stored. Greedy replies are written once, with exact keys
and values, past every end; then every form reads them. A form writes the same reply where its
favourite is the written token at every place, so each form's replies need not be written. `forms`:
bits a number, replies that stay, where the first other token is and how far apart the two
favourites were there in nats, favourites that stay, divergence. `shorter`: what is lost where half
of a text is not seen.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.models.open_model import open_model
from edgespec.models.registry import resolve
from lab.harness import Asked, Row, Rows, Script, names, numbers, option
from lab.kv_oracle import Array, Form, Kept, Oracle

PIECE, STRIDE, PROMPT, AT_ONCE = 400, 1200, 64, 10
"""Characters of a prompt and from one to the next; tokens of it; texts at once."""
SCALED = 32
script = Script(__doc__)
Change = Callable[[Array], Array]


def rounded(
    values: Array, bits: float, group: int = 0, signed: bool = False, exact: bool = False
) -> Array:
    """Numbers as so many bits with an f16 scale for each `group` of the last axis, 0 for all of it;
    `signed` as q4 has it, `exact` with f32 scales; bits need not be whole.
    """
    group = min(group or values.shape[-1], values.shape[-1])
    parts = values.reshape(*values.shape[:-1], -1, group)
    most = np.float32(2 ** (bits - 1))
    place = np.abs(parts).argmax(axis=-1, keepdims=True)
    largest = np.take_along_axis(parts, place, axis=-1)
    if signed:
        scale, low, high = -largest / most, -most, most - 1
    else:
        scale, low, high = np.abs(largest) / (most - 1), 1 - most, most - 1
    if not exact:
        near = scale.astype(np.float16)
        if not signed:
            near = np.where(near < scale, np.nextafter(near, np.float16(np.inf)), near)
        scale = near.astype(np.float32)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
    result: Array = (np.clip(np.rint(parts * inverse), low, high) * scale).reshape(values.shape)
    return result


def turned(values: Array) -> Array:
    """Heads as the native kernels turn them; twice is not at all."""
    dim = values.shape[-1]
    size = dim & -dim
    parts = values.reshape(-1, size)
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    result: Array = (parts @ (matrix / np.float32(np.sqrt(size)))).reshape(values.shape)
    return result


def in_turn(change: Change) -> Change:
    return lambda values: turned(change(turned(values)))


def apart(values: Array, change: Change, count: int, group: int = SCALED) -> Array:
    """The `count` largest of each group in f16, the others changed without them."""
    parts = values.reshape(*values.shape[:-1], -1, min(group, values.shape[-1]))
    sizes = np.abs(parts)
    limit = -np.partition(-sizes, count - 1, axis=-1)[..., count - 1 : count]
    outside = sizes >= limit
    rest = change(np.where(outside, 0, parts).reshape(values.shape)).reshape(parts.shape)
    whole = parts.astype(np.float16).astype(np.float32)
    result: Array = np.where(outside, whole, rest).reshape(values.shape)
    return result


def low_rank(values: Array, change: Change, rank: int) -> Array:
    """What `change` loses is kept as a product of two f16 matrices of a head's positions."""
    stored = change(values)
    left, sizes, right = np.linalg.svd(values - stored, full_matrices=False)
    first = (left[..., :rank] * sizes[..., None, :rank]).astype(np.float16).astype(np.float32)
    lost: Array = first @ right[..., :rank, :].astype(np.float16).astype(np.float32)
    return stored + lost


def centred(values: Array, change: Change) -> Array:
    """Each dimension's mean over these texts' positions is taken out first."""
    mean = values.mean(axis=(0, 2), keepdims=True)
    result: Array = change(values - mean) + mean
    return result


def channels(values: Array, change: Change) -> Array:
    """Each dimension of a text's positions has a scale, as KIVI keeps keys."""
    return change(values.swapaxes(2, 3)).swapaxes(2, 3)


def ideal(keys: Array, values: Array, queries: Array, weigh: Array, bits: float) -> Kept:
    """Noise of the size that no code of so many bits goes below for normal numbers of these
    covariances, in the directions where it does least to scores and outputs.
    """
    chance = np.random.default_rng(0)
    square = np.einsum("thpd,thpe->hde", queries, queries)
    return _noised(keys, square, bits, chance), _noised(values, weigh, bits, chance)


def _noised(values: Array, weigh: Array, bits: float, chance: np.random.Generator) -> Array:
    result = np.empty_like(values)
    for head in range(values.shape[1]):
        own = values[:, head].reshape(-1, values.shape[-1])
        sizes, basis = np.linalg.eigh(weigh[head].astype(np.float64))
        sizes = np.maximum(sizes, sizes.max() * 1e-6)
        forth, back = basis * np.sqrt(sizes), (basis / np.sqrt(sizes)).T
        shares, axes = np.linalg.eigh(np.cov((own @ forth).T))
        shares = np.maximum(shares, shares.max() * 1e-12)
        level = _water(shares, bits * len(shares))
        noise = chance.normal(size=own.shape) * np.sqrt(np.minimum(level, shares))
        result[:, head] = (own + noise @ axes.T @ back).reshape(result[:, head].shape)
    return result


def _water(shares: NDArray[np.float64], bits: float) -> float:
    """The noise of each direction: those that are smaller are left out."""
    ordered = np.sort(shares)[::-1]
    for count in range(len(ordered), 0, -1):
        level = float(np.exp(np.log(ordered[:count]).mean() - 2 * np.log(2) * bits / count))
        if level <= ordered[count - 1]:
            return level
    return float(ordered[0])


def standing_out(form: Form) -> Form:
    """The same for a model that computes the same with outliers: in each head two pairs of key
    dimensions are 8 times and two value dimensions 4 times as large.
    """

    def changed(keys: Array, values: Array, queries: Array, weigh: Array) -> Kept:
        larger, wider = (np.ones(keys.shape[-1], np.float32) for _ in range(2))
        larger[[0, 1, -2, -1]], wider[[0, -1]] = 8, 4
        read = form(keys * larger, values * wider, queries / larger, weigh / np.outer(wider, wider))
        return read[0] / larger, read[1] / wider

    return changed


def _half(values: Array) -> Array:
    return values.astype(np.float16).astype(np.float32)


def _brain(values: Array) -> Array:
    bits = values.view(np.uint32)
    result: Array = ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return result


def _same(values: Array) -> Array:
    return values


def _both(keys: Change, values: Change) -> Form:
    return lambda key, value, queries, weigh: (keys(key), values(value))


def _forms(dim: int) -> dict[str, tuple[float, Form | None, dict[str, Any]]]:
    """Bits a number and what is done, by name, for heads so wide."""
    by_32, whole = 16 / min(dim, SCALED), 16 / dim
    mean = (by_32 + whole) / 2
    eight, grouped = partial(rounded, bits=8), partial(rounded, bits=8, group=SCALED)
    four, four_32 = (partial(rounded, bits=4, signed=True, group=own) for own in (0, SCALED))
    pair, quartet = _both(grouped, eight), _both(in_turn(four_32), in_turn(four))
    act = {"activations": partial(rounded, bits=8, group=SCALED)}
    found: dict[str, tuple[float, Form | None, dict[str, Any]]] = {
        "f16": (16, _both(_half, _half), {}),
        "bf16": (16, _both(_brain, _brain), {}),
        "f32 and int8 activations": (32, None, act),
        "f32 and int8 weights": (32, None, {"weights": grouped}),
        "int8": (8 + mean, pair, {}),
        "int8: keys only": (8 + mean, _both(grouped, _same), {}),
        "int8: values only": (8 + mean, _both(_same, eight), {}),
        "int8: f32 scales": (
            8 + 2 * mean,
            _both(partial(grouped, exact=True), partial(eight, exact=True)),
            {},
        ),
        "int8: one scale a key": (8 + whole, _both(eight, eight), {}),
        "int8: values in 32s": (8 + by_32, _both(grouped, grouped), {}),
        "int8: all in 16s": (
            8 + 16 / min(dim, 16),
            _both(partial(eight, group=16), partial(eight, group=16)),
            {},
        ),
        "int8: keys' dimensions": (
            8 + whole / 2,
            _both(partial(channels, change=eight), eight),
            {},
        ),
        "int8: less means": (
            8 + mean,
            _both(partial(centred, change=grouped), partial(centred, change=eight)),
            {},
        ),
        "int8 turned": (8 + mean, _both(in_turn(grouped), in_turn(eight)), {}),
        "int8 turned: keys only turned": (8 + mean, _both(in_turn(grouped), eight), {}),
        "int8 turned: one scale": (8 + whole, _both(in_turn(eight), in_turn(eight)), {}),
        "int8 turned: 32s": (8 + by_32, _both(in_turn(grouped), in_turn(grouped)), {}),
        "int8 turned: signed": (
            8 + mean,
            _both(in_turn(partial(grouped, signed=True)), in_turn(partial(eight, signed=True))),
            {},
        ),
        "int8: last 128 exact": (8 + mean, pair, {"recent": 128}),
        "bound of 8 bits": (8 + mean, partial(ideal, bits=8 + mean), {}),
        "q4": (4 + mean, quartet, {}),
        "q4 not turned": (4 + mean, _both(four_32, four), {}),
    }
    for bits in (5, 6, 7, 9, 10, 11, 12, 13):
        more = partial(rounded, bits=bits, group=SCALED), partial(rounded, bits=bits)
        found[f"{bits} bits turned"] = (bits + mean, _both(*map(in_turn, more)), {})
    for count in (1, 2):
        extra = count * 24 / min(dim, SCALED)  # a number and where it was
        plain = (
            partial(apart, change=four_32, count=count),
            partial(apart, change=four, count=count),
        )
        found[f"q4 not turned: {count} of 32 apart"] = (4 + mean + extra, _both(*plain), {})
        found[f"q4: {count} of 32 apart"] = (4 + mean + extra, _both(*map(in_turn, plain)), {})
        inner = (
            partial(apart, change=in_turn(four_32), count=count),
            partial(apart, change=in_turn(four), count=count),
        )
        found[f"q4: {count} of 32 apart before"] = (4 + mean + extra, _both(*inner), {})
    for rank in (2, 4):
        extra = 16 * rank * (256 + dim) / (256 * dim)
        lost = (
            partial(low_rank, change=in_turn(four_32), rank=rank),
            partial(low_rank, change=in_turn(four), rank=rank),
        )
        found[f"q4: rank {rank} of the rest"] = (4 + mean + extra, _both(*lost), {})
    for name in ("int8", "int8 turned", "q4", "q4 not turned", "q4: 1 of 32 apart before"):
        width, form, spread = found[name]
        assert form is not None
        found[f"{name} (outliers)"] = (width, standing_out(form), spread)
    return found


MODELS = option("models", nargs="*", type=Path, metavar="MODEL")
TEXT = option("--text", type=Path, required=True)


@script.command(
    MODELS,
    TEXT,
    option("--forms", type=names, help="of the table below, by commas"),
    option("--replies", type=int, default=100),
    option("--tokens", type=int, default=200),
    option("--given", action="store_true", help="read the text itself instead of replies"),
    option("--keep", type=Path, help="a folder for the replies of exact keys and values"),
)
def forms(asked: Asked) -> Rows:
    """What each form leaves as it is, of greedy replies after pieces of a text."""
    text = asked.text.read_text("utf-8")
    for path in asked.models or [resolve()]:
        with ExitStack() as stack:
            file = stack.enter_context(open_model(path))
            exact = Oracle(file)
            texts = _replies(asked, path, exact, file.tokenizer, text)
            table = _forms(file.spec.layers[0].mixer.head_dim)  # type: ignore[union-attr]
            parts = [texts[i : i + AT_ONCE, :-1] for i in range(0, len(texts), AT_ONCE)]
            wanted = [_shares(exact.logits(part, wanted=asked.tokens)) for part in parts]
            for name in asked.forms or list(table):
                bits, form, more = table[name]
                options = dict(more)
                weights = options.pop("weights", None)
                oracle = exact if weights is None else Oracle(file, weights)
                found = []
                for part, ours in zip(parts, wanted, strict=True):
                    theirs = oracle.logits(part, form, wanted=asked.tokens, **options)
                    found.append(_apart(ours, _shares(theirs)))
                row: Row = {"form": name, "model": path.name, "bits": round(bits, 3)}
                yield row | _told(np.concatenate(found, axis=1))


@script.command(
    MODELS,
    TEXT,
    option("--contexts", type=numbers, default=[128, 256, 512]),
    option("--texts", type=int, default=20),
)
def shorter(asked: Asked) -> Rows:
    """Divergence over the last half of a context, when its first half was never seen."""
    text = asked.text.read_text("utf-8")
    for path in asked.models or [resolve()]:
        with open_model(path) as file:
            exact = Oracle(file)
            for context in asked.contexts:
                ids = file.tokenizer.encode(text[: 16 * asked.texts * context], add_bos=False)
                texts = np.array(ids[: asked.texts * context]).reshape(asked.texts, context)
                half = context // 2
                found = []
                for first in range(0, asked.texts, AT_ONCE):
                    part = texts[first : first + AT_ONCE]
                    wanted = _shares(exact.logits(part, wanted=half))
                    found.append(_apart(wanted, _shares(exact.logits(part[:, half:]))))
                row: Row = {"context": context, "model": path.name, "seen": half}
                told = _told(np.concatenate(found, axis=1))
                yield row | {name: told[name] for name in ("favourites", "divergence")}


def _replies(
    asked: Asked, path: Path, exact: Oracle, tokenizer: Any, text: str
) -> NDArray[np.int64]:
    kept = asked.keep / f"{path.stem}-{asked.replies}-{asked.tokens}.npy" if asked.keep else None
    if kept is not None and kept.exists():
        known: NDArray[np.int64] = np.load(kept)
        return known
    if asked.given:
        length = PROMPT + asked.tokens
        ids = tokenizer.encode(text[: 16 * asked.replies * length], add_bos=False)
        return np.array(ids[: asked.replies * length]).reshape(asked.replies, length)
    prompts = []
    for start in range(0, len(text) - PIECE, STRIDE):
        ids = tokenizer.encode(text[start : start + PIECE], add_bos=False)
        if len(ids) >= PROMPT:
            prompts.append(ids[:PROMPT])
        if len(prompts) == asked.replies:
            break
    texts = exact.replies(np.array(prompts), asked.tokens)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.save(kept, texts)
    return texts


def _shares(logits: Array) -> Array:
    """Logarithms of the softmax of each row."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def _apart(wanted: Array, other: Array) -> Array:
    """Of each token [5, texts, tokens]: whether the favourite stays, nats from the favourite to the
    other's, the divergence, the entropy, nats to the second choice.
    """
    best, theirs = wanted.argmax(axis=-1), other.argmax(axis=-1)
    top = np.take_along_axis(wanted, best[..., None], -1)[..., 0]
    lost = top - np.take_along_axis(wanted, theirs[..., None], -1)[..., 0]
    powers = np.exp(wanted)
    second = -np.partition(-wanted, 1, axis=-1)[..., 1]
    columns = (
        best == theirs,
        lost,
        (powers * (wanted - other)).sum(axis=-1),
        -(powers * wanted).sum(axis=-1),
        top - second,
    )
    return np.stack([column.astype(np.float32) for column in columns])


def _told(found: Array) -> Row:
    stays, lost, divergence = found[0] > 0, found[1], found[2]
    whole = stays.all(axis=1)
    places = [int(np.argmin(row)) for row in stays[~whole]]
    gaps = [float(row[place]) for row, place in zip(lost[~whole], places, strict=True)]
    return {
        "identical": f"{whole.sum()} of {len(whole)}",
        "first": statistics.median(places) if places else None,
        "gap there, nats": statistics.median(gaps) if gaps else None,
        "favourites": f"{stays.mean():.3%}",
        "divergence": f"{divergence.astype(np.float64).mean():.2e}",
        "ties < 0.01": f"{(found[4] < 0.01).mean():.2%}",
    }


if __name__ == "__main__":
    script.run()
