"""Time to the first token after a saved prefix and after computing it; whether the texts agree.

    python benchmarks/prefix.py MODEL [--tokens 4096] [--context 4608] [--trials 3] [--only WHICH]

The prefix is a text of just under that many tokens, saved as a raw text in a folder of its own; the
prompt goes on with three words. Every trial begins with an engine that holds no text, and for the
saved one with the file closed. WHICH is "saved" or "computed": the other's figures are left out,
for machines where both do not fit a quiet moment. Seconds are `stats.time_to_first_token_s`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import edgespec  # noqa: E402
import edgespec.memory.kv.prompt_cache  # noqa: E402
from edgespec.engine.engine import Engine  # noqa: E402
from edgespec.engine.reply import Reply  # noqa: E402

WORDS = (
    "the", "guide", "knows", "every", "station", "of", "the", "old", "line", "and", "tells", "how",
    "each", "came", "to", "be",
)  # fmt: skip
PROMPT = " Then the train"


def text_of(engine: Engine, num_tokens: int) -> str:
    """A text of at most that many tokens, and few less."""
    text = found = ""
    for count in range(10 * num_tokens):
        if count % 8 == 0:
            if len(engine.encode(text, raw=True)) > num_tokens:
                return found
            found = text
        text = f"{text} {WORDS[(count * count + count // 7) % len(WORDS)]}"
    raise SystemExit("this vocabulary takes more words than that")


def write(engine: Engine, prompt: str, prefix: str | None) -> Reply:
    """A reply from an engine that holds no text."""
    engine.scheduler.idle.close()
    engine.scheduler.slots[0].sequence.truncate(0)
    options = {"raw": True, "temperature": 0.0, "max_tokens": 24, "ignore_eos": True}
    return engine.generate(prompt, prefix=prefix, **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--context", type=int, default=4608)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--kv-type", default="f16")
    parser.add_argument("--only", choices=["saved", "computed"])
    parser.add_argument("--folder", type=Path, help="keep the prefix here, or take it from here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        os.environ["EDGESPEC_DATA"] = str(options.folder or made)
        with edgespec.load(
            options.model, context=options.context, kv_type=options.kv_type
        ) as engine:
            report(engine, options)


def report(engine: Engine, options: argparse.Namespace) -> None:
    text = text_of(engine, options.tokens)
    name = f"benchmark-{options.kv_type}"
    try:
        saved = edgespec.memory.kv.prompt_cache.read(name)
    except edgespec.KvFileError:
        saved = engine.save_prefix(name, text, raw=True)
    size = saved.size_bytes / 2**20
    print(f"prefix: {len(saved.header.ids)} tokens, {size:.0f} MiB, {options.kv_type}")
    seconds: dict[str, float] = {}
    texts = set()
    for which in ("computed", "saved"):
        if options.only not in (None, which):
            continue
        taken = []
        for _ in range(options.trials):
            if which == "saved":
                reply = write(engine, PROMPT, name)
            else:
                reply = write(engine, text + PROMPT, None)
            stats = reply.stats
            if stats.notes or (stats.cached_tokens > 0) != (which == "saved"):
                raise SystemExit(f"{which}: {stats.cached_tokens} tokens cached, {stats.notes}")
            taken.append(stats.time_to_first_token_s)
            texts.add(tuple(reply.token_ids))
        seconds[which] = statistics.median(taken)
        spread = f"{min(taken):.3f}-{max(taken):.3f}"
        print(f"{which:>9}: first token after {seconds[which]:.3f} s ({spread})")
    if len(seconds) == 2:
        share = seconds["saved"] / seconds["computed"]
        print(f"saved / computed: {share:.1%}, goal 5 %: {'met' if share < 0.05 else 'MISSED'}")
    print("texts: the same" if len(texts) == 1 else f"texts: {len(texts)} DIFFERENT ones")


if __name__ == "__main__":
    main()
