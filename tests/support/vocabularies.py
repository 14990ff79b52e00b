"""Small trained vocabularies and tricky texts, for comparing tokenizers."""

from __future__ import annotations

import json
import random
import unicodedata
from functools import cache
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

_SENTENCES = (
    "Once upon a time there was a little girl who lived in the old house near the river.",
    "It's what they've said: we're here, I'm late, you'll see, he'd know, and don't SHOUT!",
    "In 1984 there were 12,345 people; 67% of 890 said 3.14159 is about 22/7 (roughly).",
    "def main(args: list[str]) -> int:\n    for i in range(10):\n        print(i, end='')\n",
    "Übermäßig große Bären übten naïve Café-Besuche; ça va très bien, où est-ce qu'on va?",
    "Быстрая коричневая лиса прыгает через ленивую собаку. Привет, мир! Как дела?",
    "日本語の文章です。今日は良い天気ですね。你好,世界!今天天气很好。안녕하세요 세계 여러분.",
    "مرحبا بالعالم، كيف حالك اليوم؟ שלום עולם, מה שלומך? नमस्ते दुनिया आप कैसे हैं",
    "Emoji 😀 😃 👍🏽 👨‍👩‍👧 ❤️ 🇩🇪 and symbols → ∑ √ ≠ € £ © ™ — “quotes” … «guillemets»",
    "\t\ttabs\r\n\r\nand  double   triple    spaces\n\n\nnewlines   \n  indented\n",
)
_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@cache
def bpe_vocabulary(pre: str, vocab: int = 1200) -> dict[str, Any]:
    """Metadata of a byte-level BPE vocabulary trained on a few sentences of many scripts."""
    tokenizer = Tokenizer(models.BPE())
    # Trained without cutting words, so that merges cross every boundary a pre-tokenizer draws.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens, merges = _train(tokenizer, vocab - len(_SPECIALS) - 1, alphabet)
    every = [*_SPECIALS, "<tool>", *tokens]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": every,
        "tokenizer.ggml.scores": None,
        "tokenizer.ggml.token_type": [3] * len(_SPECIALS) + [4] + [1] * len(tokens),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
    }


@cache
def spm_vocabulary(
    vocab: int = 1200, *, space_prefix: bool = True, phrases: bool = False
) -> dict[str, Any]:
    """Metadata of a SentencePiece-style vocabulary trained on the same sentences.

    With `phrases` some tokens span several words.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=not phrases)
    tokens, _ = _train(tokenizer, vocab - 263, ["▁"])
    head = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    every = list(dict.fromkeys([*head, "<tool>", "▁▁", "▁▁▁▁", "\n\n", *tokens]))
    num_pieces = len(every) - len(head)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": every,
        "tokenizer.ggml.scores": [0.0] * len(head) + [-float(i) for i in range(num_pieces)],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [4] + [1] * (num_pieces - 1),
        "tokenizer.ggml.add_space_prefix": space_prefix,
    }


@cache
def line_vocabulary(pre: str, vocab: int = 1500, *, glued: bool = False) -> dict[str, Any]:
    """Metadata of a byte-pair vocabulary of plain text, spelt as SentencePiece does.

    With `glued` some tokens span several words.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split("\n", "isolated"), pre_tokenizers.Metaspace("▁", "never")]
        if not glued
        else [pre_tokenizers.Split("\n", "isolated")]
    )
    tokens, merges = _train(tokenizer, vocab - 263, ["▁", "\n"], " " if not glued else "▁")
    head = ["<pad>", "<eos>", "<bos>", *(f"<0x{byte:02X}>" for byte in range(256)), "<tool>"]
    newlines = ["\n" * count for count in (2, 3, 4)]
    every = list(dict.fromkeys([*head, *tokens, *newlines, "<|tool_response>", "</s>"]))
    kinds = [3, 3, 3] + [6] * 256 + [4] + [1] * (len(every) - len(head) - 2) + [4, 1]
    return {
        "tokenizer.ggml.model": "gemma4" if pre == "gemma4" else "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": every,
        "tokenizer.ggml.scores": None,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
    }


def _train(
    tokenizer: Tokenizer, vocab: int, alphabet: list[str], space: str = " "
) -> tuple[list[str], list[tuple[str, str]]]:
    trainer = trainers.BpeTrainer(vocab_size=vocab, initial_alphabet=alphabet, show_progress=False)
    # Whole sentences must not become tokens: train on overlapping fragments of them.
    text = "".join(_SENTENCES).replace(" ", space)
    tokenizer.train_from_iterator(
        [text[i : i + size] for size in (7, 13) for i in range(0, len(text), 3)], trainer
    )
    ids = tokenizer.get_vocab()
    merges = [tuple(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]
    return sorted(ids, key=lambda token: ids[token]), merges


TRICKY = (
    "", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n ", "\n \n", "a", " a", "a ", "  a  ",
    "a  b", "a   b", "\u00a0x\u00a0", "\u3000全角\u3000", "\u200b\u200d", "a\u0000b", "\x7f\x01",
    "don't", "DON'T", "I'LL", "we'Ve'd", "'s's", "' s", "''", "'tis", "it’s", "rock'n'roll",
    "1", "12", "123", "1234", "12345678901234567890", "3.14", "1,000", "x1y22z333", "½²³Ⅷ٣४",
    "...", "?!?!", "a.b.c", "e.g., i.e.", "C++", "C#", "#!/bin/sh", "a_b_c", "--flag=value",
    "https://example.com/a?b=c&d=e#f", "user@example.com", "$100.00", "100%", "<html></html>",
    "é", "e\u0301", "Å\u030a", "ﬁ ligature", "ǅ ǈ", "ß ẞ", "İ ı", "naïve café", "Ω Å K",
    "你好", "你好,世界", "日本語 テスト", "ひらがなカタカナ", "한국어", "한국어", "ไทย", "हिन्दी",
    "العربية", "עברית", "Ελληνικά", "русский", "ქართული", "አማርኛ", "𝓯𝓪𝓷𝓬𝔂", "𐐷𐐨",
    "😀", "😀😃", "👍🏽", "👨‍👩‍👧‍👦", "🇩🇪🇫🇷", "❤️", "☃", "a😀b", " 😀 ", "🤦🏼‍♂️",
    "<s>", "</s>", "<unk>", "<0x41>", "<0x0A>", "<|im_start|>", "<|im_end|>user", "<tool>",
    "a<tool>b<tool><tool>", "<|im_start|>user\nhi<|im_end|>\n", "<|im_", "|>", "▁", "▁▁a", "a▁b",
    "def f(x):\n    return x\n\n\n    # end", "{\"a\": [1, 2, {\"b\": null}]}", "a\r\nb\rc\n",
    "word " * 40, "a" * 300, " " * 70, "\n" * 40, "ab" * 100, "= " * 20, "\t\t\t\tx", "é" * 50,
    "The quick brown fox jumps over the lazy dog.", "ALL CAPS TEXT HERE", "camelCaseWordsHere",
    "�", "\ufeffbom", "\u2028\u2029", "a\u0300\u0301\u0302", "\u1100\u1161", "\U0010ffff", "\ue000",
)  # fmt: skip


def random_texts(count: int, seed: int) -> list[str]:
    """Texts that mix words, digits, spaces and assigned characters of all planes."""
    rng = random.Random(seed)
    words = " ".join(_SENTENCES).split()
    exotic = [
        chr(point)
        for point in rng.sample(range(0x80, 0x2FFFF), 12000)
        if unicodedata.category(chr(point)) not in ("Cn", "Cs", "Co")
    ]
    makers = (
        lambda: rng.choice(words),
        lambda: rng.choice((" ", "  ", "\n", "\t", "\r\n", "   \n", "'s", "'LL ", "_", "-", "▁")),
        lambda: str(rng.randrange(10 ** rng.randrange(1, 9))),
        lambda: rng.choice(exotic),
        lambda: chr(rng.randrange(32, 127)),
        lambda: rng.choice(words) + " ",
    )
    return [
        "".join(rng.choice(makers)() for _ in range(rng.randrange(1, 30))) for _ in range(count)
    ]
