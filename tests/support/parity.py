"""Greedy decoding compared token by token and logit by logit with llama.cpp on the same file.

Both decode the same prompts; after every token the peer's choice is fed to both, so one early
difference does not spoil the rest. A different choice is a near tie when one of the engines scores
the two tokens within the margin; anything else is counted as different and listed. With quantised
weights both engines also round activations, each in its own way, so both may be held against exact
arithmetic, which is what the reference backend does.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from edgespec.backends.native.target import NativeTarget
from edgespec.backends.passes import Logits
from edgespec.backends.reference import ReferenceTarget
from edgespec.memory.plan.plan import Footprint, Plan
from edgespec.models.file import ModelFile
from edgespec.models.open_model import open_model
from tests.support import llama_peer
from tests.support.passes import Passes

BACKENDS = {"native": NativeTarget, "reference": ReferenceTarget}
FLOAT_MARGIN, QUANTISED_MARGIN = 1e-3, 0.05
"""Logits this close are a tie; integer activations are rounded in blocks of the engine's choice."""
LEAST_COSINE = 0.9999
ROUNDING_RATIO = 1.25
"""How much larger our mean distance from exact arithmetic may be than the peer's."""
TEXTS = (
    "Once upon a time",
    "The little dog",
    "One day, a girl named Lily found a needle in her room. She knew it was difficult to play",
    "What is the capital of France?",
    "Tom and his mother went to the park. They saw a big",
    "Please write a short poem about the sea.",
    "1, 2, 3, 4, 5,",
    "def add(a, b):",
    "The weather today is",
    "He was very happy because",
    "User: Hello, how are you?\nAssistant:",
    "In the morning the cat sat on the",
    "A recipe for bread needs flour, water, salt and",
    "Explain why the sky is blue.",
    "My favourite colour is",
    "Sara had a red ball. She liked to throw the ball up and catch it. One day, the ball went "
    "over the fence and into the garden of the old man who lived next door. Sara was sad. She did "
    "not know what to do, so she asked her brother Ben. Ben said,",
    "The difference between a lake and a river is that",
    "It was raining, so",
    "Costly Sir or Madam,",
    "Zebras, über-große Bäume und 東京:",
)


@dataclass(frozen=True, slots=True)
class Parity:
    """What one comparison found."""

    name: str
    types: str
    num_prompts: int = 0
    num_tokens: int = 0
    num_equal: int = 0
    num_ties: int = 0
    """Other choices between logits that one engine has within the margin."""
    worst_gap: float = 0.0
    """Largest gap, in either engine's logits, between two different choices."""
    worst_cosine: float = 1.0
    """Of our logits with the peer's."""
    cosine_sum: float = 0.0
    ours_to_exact_sum: float = 0.0
    """Cosines with exact arithmetic; 0 when that was not computed."""
    peer_to_exact_sum: float = 0.0
    worst_to_exact: float = 1.0
    """Of our logits with exact arithmetic's."""
    num_peers_better: int = 0
    """Choices beyond the margin where exact arithmetic prefers the peer's."""
    differences: tuple[str, ...] = ()
    """One line for each choice beyond the margin."""

    @property
    def num_different(self) -> int:
        """Other choices beyond the margin."""
        return self.num_tokens - self.num_equal - self.num_ties

    @property
    def good(self) -> bool:
        """Equal up to near ties, and near."""
        return self.num_different == 0 and self.near

    @property
    def near(self) -> bool:
        """Nearly parallel, or about as exact as the peer."""
        noise = ROUNDING_RATIO * (1.0 - self.mean(self.peer_to_exact_sum))
        exact = self.ours_to_exact_sum > 0 and 1.0 - self.mean(self.ours_to_exact_sum) <= noise
        return self.worst_cosine >= LEAST_COSINE or exact

    def mean(self, total: float) -> float:
        """A sum over tokens, by their number."""
        return total / max(self.num_tokens, 1)


def compare(
    path: Path,
    *,
    backend: str = "native",
    num_prompts: int = len(TEXTS),
    num_tokens: int = 128,
    margin: float | None = None,
    threads: int = 2,
    exact: bool = False,
) -> Parity:
    """Compare one backend with llama.cpp on one file; raises PeerError, PeerMissing.

    `exact` also compares both with the reference backend.
    """
    with open_model(path) as file:
        types = matrix_types(file)
        prompts = [file.tokenizer.encode(text) or [0] for text in TEXTS[:num_prompts]]
        if margin is None:
            margin = FLOAT_MARGIN if types in ("F32", "F16", "BF16") else QUANTISED_MARGIN
        context = max(map(len, prompts)) + num_tokens
        backends = [backend, "reference"] if exact else [backend]
        with ExitStack() as stack:
            opened = [open_passes(file, name, context, threads) for name in backends]
            targets = [stack.enter_context(target) for target in opened]
            result = Parity(path.name, types, len(prompts))
            runs = llama_peer.greedy(path, prompts, num_tokens, threads=threads)
            for prompt, run in zip(prompts, runs, strict=True):
                for target in targets:
                    target.truncate()
                    target.prefill(prompt[:-1])
                last = prompt[-1]
                for token, theirs in run:
                    ours, *references = [_decode(target, last) for target in targets]
                    result = _count(result, ours, theirs, margin, *references)
                    last = token
    return result


def _decode(target: Passes, token: int) -> Logits:
    logits: Logits = target.score([token])[0]
    target.commit(1)
    return logits


def _count(
    result: Parity, ours: Logits, theirs: Logits, margin: float, exact: Logits | None = None
) -> Parity:
    """Add one token to the counts."""
    cosine = _cosine(ours, theirs)
    result = replace(
        result,
        num_tokens=result.num_tokens + 1,
        worst_cosine=min(result.worst_cosine, cosine),
        cosine_sum=result.cosine_sum + cosine,
    )
    if exact is not None:
        ours_to_exact = _cosine(ours, exact)
        result = replace(
            result,
            worst_to_exact=min(result.worst_to_exact, ours_to_exact),
            ours_to_exact_sum=result.ours_to_exact_sum + ours_to_exact,
            peer_to_exact_sum=result.peer_to_exact_sum + _cosine(theirs, exact),
        )
    us, them = int(ours.argmax()), int(theirs.argmax())
    if us == them:
        return replace(result, num_equal=result.num_equal + 1)
    gaps = float(ours[us] - ours[them]), float(theirs[them] - theirs[us])
    result = replace(result, worst_gap=max(*gaps, result.worst_gap))
    if min(gaps) <= margin:
        return replace(result, num_ties=result.num_ties + 1)
    line = f"  token {result.num_tokens}: we chose {us} by {gaps[0]:.5f}, "
    line += f"the peer {them} by {gaps[1]:.5f}"
    if exact is not None:
        lead = float(exact[us] - exact[them])
        line += f"; exact arithmetic prefers ours by {lead:.5f}"
        result = replace(result, num_peers_better=result.num_peers_better + (lead < 0.0))
    return replace(result, differences=(*result.differences, line))


def _cosine(left: Logits, right: Logits) -> float:
    one, two = left.astype(np.float64), right.astype(np.float64)
    return float(one @ two / np.sqrt((one @ one) * (two @ two)))


def matrix_types(file: ModelFile) -> str:
    """Types of the matrices, those with the most bytes first, as in "Q4_K+Q6_K"."""
    sizes: dict[str, int] = {}
    for info in file.tensors.values():
        if len(info.shape) > 1:
            sizes[info.type.name] = sizes.get(info.type.name, 0) + info.size_bytes
    return "+".join(sorted(sizes, key=lambda name: -sizes[name]))


def open_passes(
    file: ModelFile,
    backend: str,
    context: int,
    threads: int,
    max_nodes: int = 4,
    kv_type: str = "f16",
) -> Passes:
    """A model in a backend of that name, with no budget."""
    plan = Plan(
        backend=backend,
        quantisation="",
        context_length=context,
        kv_type=kv_type,
        max_nodes=max_nodes,
        prefill_chunk=64,
        threads=threads,
        gpu_layers=0,
        budget_bytes=0,
        footprint=Footprint(()),
    )
    return Passes(BACKENDS[backend](file, plan))
