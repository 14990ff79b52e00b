"""From corpus records to token streams: chat template, tokenizer, held-out split."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from training.asks import story_prompt
from training.mix import (
    SOURCES,
    STORY_SOURCES,
    SYSTEM_PROMPTS,
    SYSTEM_SHARE,
    TOLD_SHARE,
    WRITTEN_HERE,
    Source,
    Stage,
)

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = [END_OF_TEXT, TURN_START, TURN_END]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HELD_OUT_SHARE = 0.01
MARKS = re.compile(r"<\|(endoftext|im_start|im_end)\|>")
SPEAKER = re.compile(r"^(User|Assistant): ", re.MULTILINE)

# A piece of text, and whether the model is asked to write it (True) or only to read it (False).
Segment = tuple[str, bool]
Document = list[Segment]
Record = dict[str, Any]


def share_of(text: str, salt: str) -> float:
    """Return a number in [0, 1) that depends only on `text` and `salt`."""
    digest = hashlib.sha256(f"{salt}\0{text}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def record_key(record: Record) -> str:
    """Return what identifies a record, for splits and draws that never change."""
    return "\0".join(str(record.get(part, "")) for part in ("prompt", "response", "text"))


def is_held_out(source: Source, record: Record) -> bool:
    """Return whether a record is never trained on."""
    if source.name in WRITTEN_HERE:
        return False
    return share_of(record_key(record), "split") < HELD_OUT_SHARE


def read_source(source: Source, folder: Path) -> Iterator[Record]:
    """Yield the records of one corpus file, or those that the recipe holds itself."""
    if source.name in WRITTEN_HERE:
        for prompt, response in WRITTEN_HERE[source.name]:
            yield {"prompt": prompt, "response": response}
        return
    path = folder / f"{source.name}.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def split_turns(text: str) -> list[tuple[str, str]]:
    """Split `User: `/`Assistant: ` lines into (role, content); other text is one user turn."""
    marks = list(SPEAKER.finditer(text))
    if not marks or marks[0].start() != 0:
        return [("user", text)]
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    return [
        (mark[1].lower(), text[mark.end() : end].strip())
        for mark, end in zip(marks, ends, strict=True)
    ]


def render(record: Record) -> Document:
    """Return a record's segments: plain text as it is, everything else in the chat template."""
    prompt, response = record.get("prompt") or "", record.get("response") or ""
    text = record.get("text") or ""
    key = record_key(record)
    if record.get("source") in STORY_SOURCES and not prompt:
        asked = story_prompt(text, share_of(key, "ask"))
        if asked is not None and share_of(key, "told") < TOLD_SHARE:
            prompt, response = asked, text
    if prompt:
        turns = [*split_turns(prompt), ("assistant", response)]
    elif SPEAKER.match(text):
        turns = split_turns(text)
    else:
        return [(text + END_OF_TEXT, True)]
    if share_of(key, "system") < SYSTEM_SHARE:
        chosen = int(share_of(key, "which system") * len(SYSTEM_PROMPTS))
        turns = [("system", SYSTEM_PROMPTS[chosen]), *turns]
    segments: list[Segment] = []
    for role, content in turns:
        segments.append((f"{TURN_START}{role}\n", False))
        segments.append((f"{content}{TURN_END}", role == "assistant"))
        segments.append(("\n", False))
    segments.append((END_OF_TEXT, False))
    return segments


def byte_level(model: models.BPE) -> Tokenizer:
    """Return a tokenizer of `model` on bytes, with GPT-2's pre-tokenizer."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE with GPT-2's pre-tokenizer; the special tokens get ids 0, 1, 2."""
    tokenizer = byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def gather(
    folder: Path, limit: int | None, last: bool = False
) -> tuple[dict[Stage, list[Document]], dict[str, list[Document]]]:
    """Return the training documents of each stage and the held-out documents of each source.

    `limit` caps the records read per source (the smoke run). Held-out records are drawn by hash
    before any weight, so no copy of one is ever trained on. `last` takes the weights of the end.
    """
    training: dict[Stage, list[Document]] = {"books": [], "tasks": []}
    held_out: dict[str, list[Document]] = {}
    for source in SOURCES:
        weight = source.weight_in(last)
        for index, record in enumerate(read_source(source, folder)):
            if limit is not None and index >= limit:
                break
            key = record_key(record)
            if is_held_out(source, record):
                if share_of(key, "weight") < weight:
                    held_out.setdefault(source.name, []).append(render(record))
                continue
            copies = int(weight) + (share_of(key, "weight") < weight % 1)
            training[source.stage].extend([render(record)] * copies)
    return training, held_out


def encode(
    documents: list[Document], tokenizer: Tokenizer
) -> tuple[NDArray[np.uint16], NDArray[np.bool_]]:
    """Return token ids [n] and, for each, whether the model is asked to write it [n]."""
    ids: list[NDArray[np.uint16]] = []
    asked: list[NDArray[np.bool_]] = []
    for start in range(0, len(documents), 2000):
        segments = [piece for document in documents[start : start + 2000] for piece in document]
        encodings = tokenizer.encode_batch([text for text, _ in segments])
        for (_, wanted), encoding in zip(segments, encodings, strict=True):
            ids.append(np.array(encoding.ids, np.uint16))
            asked.append(np.full(len(encoding.ids), wanted))
    return np.concatenate(ids), np.concatenate(asked)


def prepare(
    folder: Path,
    out: Path,
    vocab_size: int,
    limit: int | None = None,
    tokenizer: Tokenizer | None = None,
    last: bool = False,
) -> None:
    """Write `tokenizer.json` and the streams `books`, `tasks` and `held_out.<source>` to `out`.

    Without a `tokenizer`, one of `vocab_size` tokens is trained on the documents.
    """
    out.mkdir(parents=True, exist_ok=True)
    training, held_out = gather(folder, limit, last)
    rng = np.random.default_rng(0)
    if tokenizer is None:
        everything = [document for stage in training.values() for document in stage]
        sample = rng.permutation(len(everything))[:40_000]
        # Special tokens are taken out first: their letters should not earn merges.
        texts = (MARKS.sub("", "".join(text for text, _ in everything[i])) for i in sample)
        tokenizer = train_tokenizer(texts, vocab_size)
    tokenizer.save(str(out / "tokenizer.json"))
    held_out_streams = {f"held_out.{name}": documents for name, documents in held_out.items()}
    for name, documents in (*training.items(), *held_out_streams.items()):
        order = rng.permutation(len(documents))
        ids, asked = encode([documents[i] for i in order], tokenizer)
        np.save(out / f"{name}.ids.npy", ids)
        np.save(out / f"{name}.asked.npy", asked)
        print(
            f"{name}: {len(documents):,} documents, {len(ids):,} tokens, "
            f"{asked.mean():.0%} to be written by the model"
        )
