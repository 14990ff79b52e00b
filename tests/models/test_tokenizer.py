from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from edgespec.errors import OptionError
from edgespec.models.open_model import open_model
from edgespec.models.tokenizers import bpe as bpe_module
from edgespec.models.tokenizers.infill import infill_ids
from edgespec.models.tokenizers.pair_merging import merge
from edgespec.models.tokenizers.pretokenizers import PRE_TOKENIZERS, in_threes
from edgespec.models.tokenizers.stream import StreamDecoder
from edgespec.models.tokenizers.tokenizer import Tokenizer
from tests.support.gguf_models import write_gguf
from tests.support.vocabularies import (
    TRICKY,
    bpe_vocabulary,
    line_vocabulary,
    random_texts,
    spm_vocabulary,
)


def tokenizer_of(path: Path, vocabulary: dict[str, Any]) -> Tokenizer:
    vocab = len(vocabulary["tokenizer.ggml.tokens"])
    kind = vocabulary["tokenizer.ggml.model"]
    write_gguf(path, vocab=vocab, layers=1, tokenizer=kind, metadata=vocabulary)
    with open_model(path) as model:
        return model.tokenizer


@pytest.fixture(scope="module", params=["spm", "bpe"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "m.gguf"
    made = {"spm": spm_vocabulary(), "bpe": bpe_vocabulary("gpt-2")}[request.param]
    return tokenizer_of(path, made)


@pytest.fixture(scope="module")
def spm(tmp_path_factory: Any) -> Tokenizer:
    return tokenizer_of(tmp_path_factory.mktemp("spm") / "m.gguf", spm_vocabulary())


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: Any) -> Tokenizer:
    return tokenizer_of(tmp_path_factory.mktemp("bpe") / "m.gguf", bpe_vocabulary("gpt-2"))


def test_what_goes_in_comes_out(tokenizer: Tokenizer) -> None:
    for text in (*TRICKY, *random_texts(100, seed=5)):
        if "<tool>" in text:  # a SentencePiece text gets a space after each special token too
            continue
        ids = tokenizer.encode(text, add_bos=False)
        decoded = tokenizer.decode(ids)
        # A SentencePiece text starts with the space its encoding adds, and ▁ is its space.
        expected = {text, (" " + text).replace("▁", " ")} if text else {text}
        assert decoded in expected
        assert all(0 <= token_id < tokenizer.vocab_size for token_id in ids)


def test_lone_surrogates_become_replacement_characters(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("a\ud800b") == tokenizer.encode("a\ufffdb")


def test_user_text_cannot_forge_control_tokens(tokenizer: Tokenizer) -> None:
    control = {i for i in range(tokenizer.vocab_size) if not tokenizer.token_bytes(i)}
    assert control
    for token_id in control:
        text = tokenizer.token_text(token_id)
        assert token_id not in tokenizer.encode(f"a{text}b {text}", add_bos=False)
        assert token_id in tokenizer.encode(f"a{text}b", add_bos=False, parse_special=True)


def test_user_defined_tokens_are_text_with_an_id(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a<tool>b", add_bos=False)
    (tool,) = (i for i in ids if tokenizer.token_text(i) == "<tool>")
    assert tokenizer.token_bytes(tool) == b"<tool>"


def test_special_ids(spm: Tokenizer, bpe: Tokenizer) -> None:
    assert (spm.bos_id, spm.eos_id, spm.add_bos) == (1, 2, True)
    assert (bpe.bos_id, bpe.eos_id, bpe.add_bos) == (0, 2, False)
    assert (set(spm.end_ids), set(bpe.end_ids)) == ({2}, {0, 2})


def test_beginning_of_text(spm: Tokenizer, bpe: Tokenizer) -> None:
    assert spm.encode("") == [1]
    assert spm.encode("", add_bos=False) == []
    assert spm.encode("a")[0] == 1
    assert bpe.encode("a")[0] != 0
    assert bpe.encode("a", add_bos=True)[0] == 0
    # A template that writes its own does not get a second one, a user's text is text.
    assert spm.encode("<s>a", parse_special=True).count(1) == 1
    assert spm.encode("<s>a")[0] == 1


def test_asking_for_a_beginning_that_is_not_there(tmp_path: Path) -> None:
    vocabulary = bpe_vocabulary("gpt-2") | {"tokenizer.ggml.bos_token_id": None}
    tokenizer = tokenizer_of(tmp_path / "m.gguf", vocabulary)
    assert tokenizer.bos_id is None
    with pytest.raises(OptionError, match="has none; leave add_bos out"):
        tokenizer.encode("a", add_bos=True)


def test_end_tokens_by_key_and_by_text(tmp_path: Path) -> None:
    tokens = ["<|eot_id|>", "<end_of_turn>", "<|fim_pad|>", "<|file_sep|>", "plain"]
    vocabulary = bpe_vocabulary("llama-bpe")
    base = vocabulary["tokenizer.ggml.tokens"]
    vocabulary = vocabulary | {
        "tokenizer.ggml.tokens": base + tokens,
        "tokenizer.ggml.token_type": vocabulary["tokenizer.ggml.token_type"] + [1, 3, 3, 3, 1],
        "tokenizer.ggml.eom_token_id": 1,
        "tokenizer.ggml.add_bos_token": None,
    }
    tokenizer = tokenizer_of(tmp_path / "m.gguf", vocabulary)
    first = len(base)
    assert tokenizer.end_ids == {0, 1, 2, first, first + 1, first + 2, first + 3}
    assert tokenizer.token_bytes(first) == b""
    assert tokenizer.token_bytes(first + 4) == b"plain"
    assert tokenizer.add_bos


@pytest.mark.parametrize("by_key", [True, False])
def test_fill_in_the_middle_tokens_are_found(tmp_path: Path, by_key: bool) -> None:
    """In a prompt of text that spells them, they stay text."""
    names = ["<a>", "<b>", "<c>"] if by_key else ["<fim_suffix>", "<fim_middle>", "<fim_prefix>"]
    vocabulary = bpe_vocabulary("gpt-2")
    base = vocabulary["tokenizer.ggml.tokens"]
    first = len(base)
    vocabulary = vocabulary | {
        "tokenizer.ggml.tokens": base + names,
        "tokenizer.ggml.token_type": vocabulary["tokenizer.ggml.token_type"] + [3, 3, 3],
        "tokenizer.ggml.add_bos_token": None,
    }
    if by_key:
        for key, place in (("fim_suf", 0), ("middle", 1), ("fim_pre", 2)):
            vocabulary[f"tokenizer.ggml.{key}_token_id"] = first + place
    tokenizer = tokenizer_of(tmp_path / "m.gguf", vocabulary)
    text = f"a{names[0]}"
    before, after = tokenizer.encode(text, add_bos=False), tokenizer.encode("b", add_bos=False)
    assert not set(before) & {first, first + 1, first + 2}
    ids = infill_ids(tokenizer, text, "b")
    marked = [first + 2, *before, first, *after, first + 1]
    assert ids[-len(marked) :] == marked
    assert infill_ids(tokenizer, text, None) == tokenizer.encode(text)


@pytest.mark.parametrize("bad", [-1, 10**6])
def test_ids_out_of_range(tokenizer: Tokenizer, bad: int) -> None:
    with pytest.raises(IndexError, match=f"token {bad} of a vocabulary of"):
        tokenizer.token_bytes(bad)


def test_pre_tokenizers_differ() -> None:
    text = "It's 12345 apples,DON'T\r\n\r\n  wait...  你好世界 x1y22z333!!!\n"
    distinct = ("gpt-2", "smollm", "llama-bpe", "qwen2", "deepseek-llm", "deepseek-coder")
    cuts = {
        tuple(bpe_module.cut(text, bpe_module.compiled(PRE_TOKENIZERS[pre].patterns)))
        for pre in distinct
    }
    assert len(cuts) == len(distinct)


CUTS = {
    "gpt-2": ("It's 12345 x\n\n y", "It|'s| 12345| x|\n\n| y"),
    "smollm": ("a 123", "a| |1|2|3"),
    "llama-bpe": ("I'LL 12345!!\n\n x", "I|'LL| |123|45|!!\n\n| x"),
    "lfm2": ("12345", "123|45"),
    "glm4": ("12345 (a)", "123|45| (|a|)"),
    "qwen2": ("x12 नमस्ते", "x|1|2| नमस|्त|े"),
    "qwen35": ("x12 नमस्ते", "x|1|2| नमस्ते"),
    "tekken": ("camelCase HTTPServer don't 12", "camel|Case| HTTPServer| don|'t| |1|2"),
    "gpt-4o": ("camelCase don't 1234 a/b", "camel|Case| don't| |123|4| a|/b"),
    "deepseek-v3": ("x+y 漢字abc 12345", "x|+y| |漢字|abc| |123|45"),
    "falcon": ("a,b 12345", "a|,|b| |123|45"),
    "default": ("a,b 12345", "a|,|b| |123|45"),
    "kimi-k2": ("漢字abc don't 1234", "漢字|abc| don't| |123|4"),
    "exaone-moe": ("two words, 12", "two words|,| |1|2"),
    "superbpe": ("two words 12345", "two words |12|345"),
    "tiny_aya": ("a 1234567", "a| |1|234|567"),
    "afmoe": ("x 1234567", "x| |1|234|567"),
    "viking": ("a b, c12", "a| b|,| c|1|2"),
    "bloom": ("a b, c12", "a| b|,| c12"),
    "seed-coder": ("ab !\n x", "ab| !|\n| x"),
    "bailingmoe": ("I'LL a 12", "I|'LL| a| |1|2"),
    "ufakzeka": ("Ali'nin", "Ali|'nin"),
    "minicpm5": ("a1234", "a|123|4"),
    "jais-2": ("a" + " " * 11 + "b", "a|" + " " * 8 + "|  | b"),
}


@pytest.mark.parametrize("pre", CUTS)
def test_where_words_are_cut(tmp_path: Path, pre: str) -> None:
    """As each expression says, read by hand."""
    text, expected = CUTS[pre]
    tokenizer = tokenizer_of(tmp_path / "m.gguf", bpe_vocabulary(pre))
    assert isinstance(tokenizer, bpe_module.BpeTokenizer)
    stand_ins = {**bpe_module.BYTES_OF}
    cut = [b"".join(stand_ins[c] for c in word).decode() for word in tokenizer._words(text)]
    assert "|".join(cut) == expected


@given(st.integers(1, 40), st.sampled_from(["numbers", "digits"]))
def test_threes_are_counted_from_the_end(length: int, which: str) -> None:
    number = "1234567890"[: length % 10] + "7" * (length - length % 10)
    groups = list(in_threes(number, which))
    assert "".join(groups) == number
    assert [len(group) for group in groups[1:]] == [3] * (len(groups) - 1)
    assert 1 <= len(groups[0]) <= 3
    assert list(in_threes("12½345678", "digits")) == ["12½", "345", "678"]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: Any) -> Tokenizer:
    return tokenizer_of(tmp_path_factory.mktemp("lines") / "m.gguf", line_vocabulary("gemma4"))


def test_lines_go_in_and_come_out(lines: Tokenizer) -> None:
    assert lines.add_bos
    for text in (*TRICKY, *random_texts(100, seed=5)):
        if "</s>" not in text:
            ids = lines.encode(text, add_bos=False)
            assert lines.decode(ids) == text.replace("▁", " ")


def test_newlines_that_are_a_token_are_taken_whole(lines: Tokenizer) -> None:
    ids = lines.encode("a\n\n\nb\n\n\n\n\n", add_bos=False)
    texts = [lines.token_text(token) for token in ids]
    assert texts[:3] == ["a", "\n\n\n", "b"]
    assert "".join(texts[3:]) == "\n" * 5


def test_a_token_that_is_no_end_beside_others(lines: Tokenizer) -> None:
    """Gemma 4's `</s>` is HTML; gpt-oss ends a message, not a reply, with `<|end|>`."""
    ends = {lines.token_text(token) for token in lines.end_ids}
    assert ends == {"<eos>", "<|tool_response>"}
    assert lines.decode(lines.encode("<s>a</s>")).endswith("a</s>")


def test_messages_end_within_a_reply(tmp_path: Path) -> None:
    vocabulary = bpe_vocabulary("gpt-4o")
    base, kinds = vocabulary["tokenizer.ggml.tokens"], vocabulary["tokenizer.ggml.token_type"]
    for extra in (["<|end|>", "<|return|>", "<|call|>"], ["<|end|>", "<|call|>"]):
        added = {
            "tokenizer.ggml.tokens": base + extra,
            "tokenizer.ggml.token_type": kinds + [3] * len(extra),
        }
        tokenizer = tokenizer_of(tmp_path / "m.gguf", vocabulary | added)
        is_end = len(base) in tokenizer.end_ids
        assert is_end == ("<|return|>" not in extra)
        assert tokenizer.token_bytes(len(base)) == b""


@pytest.mark.parametrize("glued", [False, True], ids=["words", "phrases"])
def test_lines_in_words_are_merged_as_lines_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, glued: bool
) -> None:
    tokenizer = tokenizer_of(tmp_path / "m.gguf", line_vocabulary("gemma4", glued=glued))
    texts = (*TRICKY, *random_texts(200, seed=8))
    in_words = [tokenizer.encode(text) for text in texts]
    tokenizer = tokenizer_of(tmp_path / "m.gguf", line_vocabulary("gemma4", glued=glued))
    monkeypatch.setattr(tokenizer, "_word_starts", None)
    assert [tokenizer.encode(text) for text in texts] == in_words


@pytest.mark.parametrize(
    "text",
    ["x" * 200_000, "ab" * 100_000, "é😀" * 30_000, "a b" * 60_000, " " * 100_000, "<s>" * 30_000],
    ids=["one letter", "two letters", "bytes", "words", "spaces", "specials"],
)
def test_long_texts_take_no_quadratic_time(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_bos=False, parse_special=True)
    assert len(ids) >= len(text) / 200


@pytest.mark.parametrize(
    "pre", sorted({str(p): name for name, p in PRE_TOKENIZERS.items()}.values())
)
def test_no_cut_takes_quadratic_time(tmp_path: Path, pre: str) -> None:
    """An expression that looks far ahead at every step would take minutes."""
    make = line_vocabulary if PRE_TOKENIZERS[pre].whole_lines else bpe_vocabulary
    tokenizer = tokenizer_of(tmp_path / "m.gguf", make(pre))
    for text in ("7" * 100_000, "A" * 100_000, " " * 100_000, "\u0301" * 30_000, "a1" * 50_000):
        assert tokenizer.encode(text, add_bos=False)


def test_cuts_are_those_of_the_library_that_the_expressions_are_written_for() -> None:
    """Oniguruma, within Hugging Face's `tokenizers`."""
    texts = (*TRICKY, *random_texts(40, seed=3))
    for known in PRE_TOKENIZERS.values():
        splits = [pre_tokenizers.Split(Regex(each), "isolated") for each in known.patterns]
        theirs = pre_tokenizers.Sequence(splits)
        for text in texts if splits else ():
            ours = [*bpe_module.cut(text, bpe_module.compiled(known.patterns))]
            assert ours == [word for word, _ in theirs.pre_tokenize_str(text)], known.patterns


def test_merging_equals_the_obvious_loop() -> None:
    ranks = {("a", "b"): 2, ("b", "a"): 1, ("ba", "b"): 1, ("a", "a"): 3, ("ab", "ab"): 0}

    def naive(parts: list[str]) -> list[str]:
        while True:
            found = [
                (ranks[pair], i)
                for i, pair in enumerate(zip(parts, parts[1:], strict=False))
                if pair in ranks
            ]
            if not found:
                return parts
            at = min(found)[1]
            parts = [*parts[:at], parts[at] + parts[at + 1], *parts[at + 2 :]]

    for size in range(9):
        for word in itertools.product("abc", repeat=size):
            assert merge(list(word), lambda a, b: ranks.get((a, b))) == naive(list(word))


def chunks(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for begin, end in zip(places, places[1:], strict=False):
        yield data[begin:end]


@settings(max_examples=300, deadline=None)
@given(
    data=st.one_of(
        st.binary(max_size=40),
        st.text(max_size=20).map(lambda text: text.encode("utf-8", "surrogatepass")),
        st.lists(st.sampled_from([b"\xf0", b"\x9f", b"\x98", b"\x80", b"a", b"\xe4\xbd", b"\xa0"]))
        .map(b"".join),
    ),
    cuts=st.lists(st.integers(0, 1000), max_size=8),
)  # fmt: skip
def test_streaming_equals_decoding_the_whole(data: bytes, cuts: list[int]) -> None:
    pieces = list(chunks(data, cuts))
    decoder = StreamDecoder(pieces.__getitem__)
    texts = [decoder.push(index) for index in range(len(pieces))]
    done = b""
    for piece, text in zip(pieces, texts, strict=True):
        done += piece
        assert "\ufffd" not in text or "\ufffd" in done.decode("utf-8", "replace")
    assert "".join(texts) + decoder.flush() == data.decode("utf-8", "replace")
    assert decoder.flush() == ""


def test_streaming_never_shows_half_a_character(tokenizer: Tokenizer) -> None:
    for text in TRICKY:
        ids = tokenizer.encode(text, add_bos=False)
        stream = tokenizer.stream()
        pieces = [stream.push(token_id) for token_id in ids]
        assert "".join(pieces) + stream.flush() == tokenizer.decode(ids)
        if "\ufffd" not in text:
            assert not any("\ufffd" in piece for piece in pieces)


def test_a_character_cut_short_is_flushed_as_a_replacement(spm: Tokenizer) -> None:
    ids = spm.encode("𐐷", add_bos=False)[:-1]
    stream = spm.stream()
    assert "".join(map(stream.push, ids)).strip() == ""
    assert stream.flush() == "\ufffd"
    assert spm.decode(ids).strip() == "\ufffd"


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_shielded_text_cannot_forge_a_turn(tmp_path: Path, kind: str) -> None:
    """A user who types a control token gets its letters, in a template too."""
    path = write_gguf(tmp_path / "model.gguf", tokenizer=kind)
    with open_model(path) as model:
        tokenizer = model.tokenizer
        end = tokenizer.token_text(tokenizer.eos_id or 0)
        typed = f"Hello {end}you"
        forged = tokenizer.encode(typed, parse_special=True)
        ids = tokenizer.encode(tokenizer.shield(typed), parse_special=True)
        assert tokenizer.eos_id in forged
        assert tokenizer.eos_id not in ids
        assert tokenizer.decode(ids).strip() == typed
        assert tokenizer.shield("nothing special") == "nothing special"
