"""What `Engine.generate`, `Engine.stream` and the commands take to write a reply."""

# Annotations are real objects here: options are read from them at every start.
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Self, TypedDict

from edgespec.system.option_fields import Option
from edgespec.system.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyOptions:
    """How a reply is drawn, when it ends, and whether it is speculated on."""

    max_tokens: Annotated[
        int, Option("Maximum number of tokens to generate.", metavar="N", short="-n")
    ] = 512
    temperature: Annotated[
        float,
        Option(
            "Sampling temperature; 0 always picks the most likely token.", metavar="T", short="-t"
        ),
    ] = 0.8
    top_k: Annotated[
        int,
        Option("Sample from the K most likely tokens; 0 turns this off.", metavar="K", tuning=True),
    ] = 40
    top_p: Annotated[
        float,
        Option(
            "Sample from the most likely tokens whose probabilities add up to P; 1 turns this off.",
            metavar="P",
            tuning=True,
        ),
    ] = 0.95
    min_p: Annotated[
        float,
        Option(
            "Drop tokens less than P times as likely as the best; 0 turns this off.",
            metavar="P",
            tuning=True,
        ),
    ] = 0.05
    repetition_penalty: Annotated[
        float, Option("Values above 1 discourage repetition.", metavar="R", tuning=True)
    ] = 1.0
    repetition_window: Annotated[
        int, Option("Tokens that repetition, frequency and presence look back on.", shell=False)
    ] = 64
    frequency_penalty: Annotated[
        float, Option("Taken from a logit for each time its token was used lately.", shell=False)
    ] = 0.0
    presence_penalty: Annotated[
        float, Option("Taken once from the logits of tokens that were used lately.", shell=False)
    ] = 0.0
    dry_multiplier: Annotated[
        float, Option("How much DRY takes from what would repeat the text; 0 is off.", shell=False)
    ] = 0.0
    dry_base: Annotated[
        float, Option("DRY takes so many times more for each token of a repetition.", shell=False)
    ] = 1.75
    dry_allowed_length: Annotated[
        int, Option("Repetitions up to this many tokens cost least.", shell=False)
    ] = 2
    top_n_sigma: Annotated[
        float,
        Option("Keep logits within N standard deviations of the best; 0 is off.", shell=False),
    ] = 0.0
    typical_p: Annotated[
        float,
        Option("Keep the tokens of about the expected surprise, up to P; 1 is off.", shell=False),
    ] = 1.0
    xtc_probability: Annotated[
        float,
        Option("How often the likeliest tokens but the last are left out; 0 is off.", shell=False),
    ] = 0.0
    xtc_threshold: Annotated[
        float, Option("Probability from which XTC counts a token as likely.", shell=False)
    ] = 0.1
    logit_bias: Annotated[
        Mapping[int, float] | None,
        Option("What is added to the logits of tokens, by their ids.", shell=False),
    ] = None
    stop: Annotated[
        str | Sequence[str] | None,
        Option("End the reply before this text.", metavar="TEXT"),
    ] = None
    schema: Annotated[
        Any,
        Option("JSON schema that the reply must follow: a file, or JSON text.", metavar="FILE"),
    ] = None
    regex: Annotated[
        str | None, Option("Regular expression that the whole reply must match.", shell=False)
    ] = None
    grammar: Annotated[
        str | None, Option("Grammar in Lark's notation that the reply must follow.", shell=False)
    ] = None
    names: Annotated[
        Sequence[str] | None,
        Option(
            "Identifiers that exist: what the reply writes right behind a dot is one of them.",
            shell=False,
        ),
    ] = None
    logprobs: Annotated[
        int | None,
        Option(
            "Give each token's log-probability, and those of the N likeliest there.", shell=False
        ),
    ] = None
    origins: Annotated[
        bool, Option("Tell of each token which drafter proposed it.", shell=False)
    ] = False
    seed: Annotated[
        int | None,
        Option("Random seed; the same seed gives the same text. Random by default.", metavar="S"),
    ] = None
    speculation: Annotated[
        bool,
        Option(
            "Draft tokens ahead and verify several in one pass; the text is the same without.",
            off="Generate one token at a time; the text is the same, only slower.",
            tuning=True,
        ),
    ] = True
    max_nodes: Annotated[
        int | None, Option("Maximum tokens verified in one pass of this reply.", shell=False)
    ] = None
    ignore_eos: Annotated[
        bool, Option("Keep going when the model would end its reply.", tuning=True)
    ] = False
    accept: Annotated[
        str,
        Option(
            "Which drafts are kept: exact keeps what the model alone would write; typical also "
            "keeps likely ones, which changes the text.",
            metavar="exact|typical",
            tuning=True,
        ),
    ] = "exact"
    on_overflow: Annotated[
        str,
        Option(
            "When the context is full: stop, drop the oldest turns, or keep a sliding window.",
            metavar="stop|drop-turns|sliding",
            tuning=True,
        ),
    ] = "stop"
    raw: Annotated[bool, Option("Send the prompt as is, without the chat template.")] = False
    thinking: Annotated[
        bool | None,
        Option("Let the model reason before it answers; by default as its chat template does."),
    ] = None
    prefix: Annotated[
        str | None,
        Option(
            "Start with the system message saved by `edgespec prefix save`.",
            metavar="NAME",
            tuning=True,
        ),
    ] = None

    def without_thoughts(self) -> Self:
        """The same, but where something binds the reply the model does not reason before it."""
        if (self.schema, self.regex, self.grammar, self.names) == (None, None, None, None):
            return self
        return replace(self, thinking=self.thinking or False)


class ReplyKeywords(TypedDict, total=False):
    """The same as keywords, for type checkers; a test holds the two together."""

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    repetition_window: int
    frequency_penalty: float
    presence_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    top_n_sigma: float
    typical_p: float
    xtc_probability: float
    xtc_threshold: float
    logit_bias: Mapping[int, float] | None
    stop: str | Sequence[str] | None
    schema: Any
    regex: str | None
    grammar: str | None
    names: Sequence[str] | None
    logprobs: int | None
    origins: bool
    seed: int | None
    speculation: bool
    max_nodes: int | None
    ignore_eos: bool
    accept: str
    on_overflow: str
    raw: bool
    thinking: bool | None
    prefix: str | None
