"""How byte-pair vocabularies cut text into words before merging, by `tokenizer.ggml.pre`.

Each entry is a list of regular expressions applied one after the other: matches and the gaps
between them both become pieces. Source: llama.cpp's `llm_tokenizer_bpe` and its `unicode.cpp`,
whose cuts these are, so that ids agree, also where a model's own expression asks for finer
classes than llama.cpp knows (upper and lower case beyond ASCII).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from edgespec.system.records import dataclass

_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"


def _modern(
    contractions: str = _CONTRACTIONS + "|",
    word: str = r"[^\r\n\p{L}\p{N}]?\p{L}+",
    digits: str = r"\p{N}",
    signs: str = r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    spaces: str = _SPACES,
) -> str:
    """What Llama 3 and Qwen 2 made usual: contractions, words, digits, signs, spaces."""
    return f"{contractions}{word}|{digits}|{signs}{spaces}"


_LLAMA3 = _modern(digits=r"\p{N}{1,3}")
_QWEN2 = _modern()
_QWEN35 = _modern(word=r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", signs=r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*")
_BAILING = _modern(r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|").replace(
    r"\s*[\r\n]+", r"\s*[\r\n]"
)
_SEED_CODER = _modern(signs=r" ?[^\s\p{L}\p{N}\r\n]+")
_EXAONE_MOE = _modern(
    word=r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
    signs=r" ?[^\s\p{L}\p{N}]+[\r\n/]?",
).replace(r"\s*[\r\n]+", r"\s*[\r\n]")
_LONG_SPACES = "".join(rf"|\s{{{size}}}(?!\S)" for size in (512, 256, 128, 64, 32, 16, 8, 4))
_JAIS2 = _modern(
    digits=r"\p{N}{1,3}", spaces=r"|\s*[\r\n]+" + _LONG_SPACES + r"|\s{1,2}(?!\S)|\s{1}"
)


def _cased(letters: str, after: str, digits: str, signs: str = r"[\r\n/]*") -> str:
    """Words that end where capitals follow small letters, as of o200k and Tekken; only ASCII
    letters are known to be one or the other.
    """
    upper, lower = rf"[{letters}&&[^a-z]]", rf"[{letters}&&[^A-Z]]"
    head = r"[^\r\n\p{L}\p{N}]?"
    words = f"{head}{upper}*{lower}+{after}|{head}{upper}+{lower}*{after}"
    return rf"{words}|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+{signs}" + _SPACES


_TEKKEN = _cased(r"\p{L}", "", "")
_O200K = _cased(r"\p{L}", _CONTRACTIONS + "?", "{1,3}")
_UNCASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+{_CONTRACTIONS}?|\p{{N}}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES
)

# Cased letters, in the order of DeepSeek's own tokenizer.json.
_CASED = (
    r"A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    r"\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    r"\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd"
    r"\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d"
    r"\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    r"\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"
    r"\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    r"\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b"
    r"\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787"
    r"\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    r"\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    r"\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_KANJI_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_ASCII_SIGNS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_DEEPSEEK3_WORDS = _ASCII_SIGNS + (
    r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
)
_DEEPSEEK3 = (r"\p{N}{1,3}", _KANJI_KANA, _DEEPSEEK3_WORDS + r"[\r\n]*" + _SPACES)
_AFMOE_SCRIPTS = (
    "[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf"
    "\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af"
    "\u1100-\u11ff]+"
)
_YOUTU_SCRIPTS = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c"
    "\u3001-\u303f\ufe30-\ufe4f]+|[\u3105-\u312f]+|" + _KANJI_KANA
)
_HAN = (
    "\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002ebef\uf900-\ufaff"
    "\U0002f800-\U0002fa1f"
)
_KIMI = f"[{_HAN}]+|" + _modern(
    "", rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}&&[^{_HAN}]]+{_CONTRACTIONS}?", r"\p{N}{1,3}"
)
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_NOT_NAMED = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """The expressions of one pre-tokenizer and the defaults that come with it."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    """A word that is a token is taken whole, whatever the merges would make of it."""
    add_bos: bool = False
    thousands: Literal["", "numbers", "digits"] = ""
    """Runs of numbers (or of ASCII digits alone) are first cut into threes from their end."""
    whole_lines: bool = False
    """Lines are merged whole: spaces are written \u2581, and characters as themselves."""
    whole_newlines: bool = False
    """Newlines in a row that are a token are taken whole."""


_GPT2_LIKE = PreTokenizer((_GPT2,))
_DIGITS_THEN_GPT2 = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA3_LIKE = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_QWEN2_LIKE = PreTokenizer((_QWEN2,))
_O200K_LIKE = PreTokenizer((_O200K,))
_DEEPSEEK3_LIKE = PreTokenizer(_DEEPSEEK3)
_BLOOM_LIKE = PreTokenizer((_BLOOM,))
_BAILING_LIKE = PreTokenizer((_BAILING,))
_BY_THREES = PreTokenizer((_UNCASED % "{1,3}",), thousands="numbers")

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    **dict.fromkeys(
        ("gpt-2", "mpt", "olmo", "phi-2", "jais", "trillion", "granite-docling", "gigachat",
         "a.x-4.0", "mellum", "exaone4"), _GPT2_LIKE),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b",
         "mellum2"), _DIGITS_THEN_GPT2),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
        _LLAMA3_LIKE),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), PreTokenizer((_LLAMA3,))),
    **dict.fromkeys(("glm4", "glm5"), PreTokenizer((_LLAMA3,), ignore_merges=True)),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan", "kormo", "solar-open",
         "grok-2"), _QWEN2_LIKE),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _O200K_LIKE),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm"), _DEEPSEEK3_LIKE),
    **dict.fromkeys(("bloom", "gpt3-finnish", "poro-chat"), _BLOOM_LIKE),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), _BAILING_LIKE),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), _BY_THREES),
    "qwen35": PreTokenizer((_QWEN35,)),
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
    "falcon": PreTokenizer(
        (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")
    ),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            r"\s?[" + _CASED.encode().decode("unicode_escape") + "]+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+$",
            _DEEPSEEK_CJK,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": PreTokenizer(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}")
    ),
    "spark2_5": PreTokenizer(
        (*_DEEPSEEK3[:2], _DEEPSEEK3_WORDS + r"|[\r\n]|\s+(?!\S)|\s+", r"\p{N}")
    ),
    "youtu": PreTokenizer((_YOUTU_SCRIPTS, _UNCASED % ""), ignore_merges=True),
    "kimi-k2": PreTokenizer((_KIMI,)),
    "jais-2": PreTokenizer((_JAIS2,)),
    "seed-coder": PreTokenizer((_SEED_CODER,)),
    "exaone-moe": PreTokenizer((_EXAONE_MOE,)),
    "superbpe": PreTokenizer((r"\p{N}+",), thousands="digits"),
    "viking": PreTokenizer((_BLOOM, r"\p{N}")),
    "ufakzeka": PreTokenizer((_modern(""),)),
    "laguna": PreTokenizer((r"[^\n]+|[\n]+", _QWEN2)),
    "minicpm5": PreTokenizer(
        (r"\p{N}{1,3}", _modern(digits=r"\p{N}+")), ignore_merges=True
    ),
    "afmoe": PreTokenizer(
        (_AFMOE_SCRIPTS, _DEEPSEEK3_WORDS + r"[\r\n]*" + _SPACES), thousands="numbers"
    ),
    "chameleon": PreTokenizer(
        (
            "<sentinel:[0-9]+>",
            "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            r"([\t\n]|    |  )",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        add_bos=True,
    ),
    "gemma4": PreTokenizer((), add_bos=True, whole_lines=True, whole_newlines=True),
    "sarvam-moe": PreTokenizer((), whole_lines=True),
    "default": PreTokenizer(_NOT_NAMED),
}  # fmt: skip


def in_threes(number: str, which: str) -> Iterator[str]:
    """A run of numbers cut where a multiple of three of them is left; with `which` "digits" only
    ASCII digits count.
    """
    cuts, count = [len(number)], 0
    for place in range(len(number) - 1, 0, -1):
        count = count + 1 if which == "numbers" or number[place] in "0123456789" else 0
        if count and count % 3 == 0:
            cuts.append(place)
    begin = 0
    for end in reversed(cuts):
        yield number[begin:end]
        begin = end
