"""Commands about a text: its vector, its tokens, how likely a model finds it."""

from __future__ import annotations

import json
import math
import sys
from typing import Annotated

import typer

from edgespec.engine.reply_options import ReplyOptions
from edgespec.loading.load_options import LoadOptions
from edgespec.terminal.parameters import Json, Memory, Model, Threads, parameter
from edgespec.terminal.text_io import print_json, printable, read_prompt

Text = Annotated[str | None, typer.Argument(metavar="TEXT", help="The text.", show_default=False)]
Context = Annotated[int | None, parameter(LoadOptions, "context")]


def embed(
    text: Text = None,
    model: Model = None,
    pooling: Annotated[
        str,
        typer.Option(
            "--pooling", metavar="mean|last", help="Average over all tokens, or take the last one."
        ),
    ] = "mean",
    lines: Annotated[
        bool, typer.Option("--lines", help="Each line of the text is a text of its own.")
    ] = False,
    memory: Memory = "auto",
    context: Context = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Print what a text is about, as a vector of length one.

    The text is TEXT, standard input, or both, separated by a blank line. Each vector is a JSON list
    on a line of its own.
    """
    from edgespec.engine.embedding import check_pooling
    from edgespec.terminal.opened_engine import opened_engine

    check_pooling(pooling)
    whole = _read(text, "embed")
    texts = [line for line in whole.splitlines() if line.strip()] if lines else [whole]
    load = LoadOptions(model, memory=memory, context=context, threads=threads)
    found = []
    with opened_engine(load, ReplyOptions(speculation=False)) as (engine, _):
        for one in texts:
            vector = [round(float(value), 7) for value in engine.embed(one, pooling=pooling)]  # type: ignore[arg-type]
            if as_json:
                found.append({"text": one, "embedding": vector})
            else:
                print(json.dumps(vector), flush=True)
    if as_json:
        print_json(found)


def tokenize(
    text: Text = None,
    model: Model = None,
    count: Annotated[bool, typer.Option("--count", help="Print only how many there are.")] = False,
    as_json: Json = False,
) -> None:
    """Print the tokens of a text, as the model's tokenizer divides it.

    The text is TEXT, standard input, or both, separated by a blank line. No model is loaded, and a
    file that holds a vocabulary alone will do.
    """
    from edgespec.models.registry import resolve
    from edgespec.models.vocabulary_file import open_vocabulary

    whole = _read(text, "tokenize")
    with open_vocabulary(resolve(model)) as vocabulary:
        tokenizer = vocabulary.tokenizer
        ids = tokenizer.encode(whole)
        spelled = [tokenizer.token_text(one) for one in ids]
    if as_json:
        print_json({"count": len(ids), "ids": ids, "tokens": spelled})
    elif count:
        print(len(ids))
    else:
        width = max((len(str(one)) for one in ids), default=0)
        for one, said in zip(ids, spelled, strict=True):
            print(f"{one:>{width}}  {printable(said)!r}")


def score(
    text: Text = None,
    model: Model = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Also list every token.")] = False,
    memory: Memory = "auto",
    context: Context = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Print how likely a model finds a text: its log-probability and perplexity.

    The text is TEXT, standard input, or both, separated by a blank line, and is read as it is,
    without the chat template. Logarithms are natural. The first token counts where the model
    begins texts with a token of its own.
    """
    from edgespec.terminal.opened_engine import opened_engine

    whole = _read(text, "score")
    load = LoadOptions(model, memory=memory, context=context, threads=threads)
    with opened_engine(load, ReplyOptions(speculation=False)) as (engine, _):
        found = engine.score(whole)
        spelled = [engine.tokenizer.token_text(one.token_id) for one in found]
    total = math.fsum(one.logprob for one in found)
    mean = total / max(len(found), 1)
    if as_json:
        listed = [
            {"id": one.token_id, "token": said, "logprob": one.logprob}
            for one, said in zip(found, spelled, strict=True)
        ]
        facts = {"logprob": total, "perplexity": math.exp(-mean), "tokens": listed}
        print_json(facts)
        return
    if tokens:
        for one, said in zip(found, spelled, strict=True):
            print(f"{one.logprob:>9.4f}  {printable(said)!r}")
    print(f"log-probability {total:.4f} of {len(found)} tokens, perplexity {math.exp(-mean):.4f}")


def _read(text: str | None, command: str) -> str:
    return read_prompt(text, sys.stdin.buffer, stdin_is_terminal=sys.stdin.isatty(), of=command)
