"""Whether a token tells which experts it will choose: what cutting trees by branch would need.

    python -m lab.expert_foresight MODEL TEXT [--tokens 512]

The reference backend reads a text, and notes each layer's choices. Foretold for a token are: the
layer's commonest experts so far, those of the token before, those that the same token chose last,
and those that it chose most. A share of 1 is all experts foretold. Then a node after its parent:
how many experts it adds, how much of what differs between nodes is foretold, and how many fewer
experts the better of two random nodes adds if it is taken by what is foretold: that bounds what
prices by branch can save, where nodes are priced by the average today.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

import edgespec
from edgespec.backends.reference import ReferenceTarget, experts
from edgespec.errors import OptionError
from edgespec.models.open_model import open_model
from edgespec.models.registry import resolve
from lab.harness import MODEL, Asked, Rows, Script, option

Chosen = NDArray[np.int64]

script = Script(__doc__)


@script.command(
    MODEL,
    option("text", type=Path, help="a text file"),
    option("--tokens", type=int, default=512),
    option("--skip", type=int, default=128, help="tokens that are learnt from only"),
)
def shares(asked: Asked) -> Rows:
    """How much of a token's experts is foretold, and what a further node adds."""
    ids, chosen, routed = choices(asked.model, asked.text.read_text("utf-8"), asked.tokens)
    active = chosen.shape[2]
    found: dict[str, list[float]] = defaultdict(list)
    adds: list[tuple[int, int]] = []
    common = np.zeros((len(routed), max(routed)), np.int64)
    own: dict[int, Chosen] = {}
    last: dict[int, Chosen] = {}
    for place, token in enumerate(ids):
        now = chosen[place]
        if place >= asked.skip:
            known = token in own
            most = best(own[token] if known else common, active)
            foretold = {
                "commonest": best(common, active),
                "the token before's": chosen[place - 1],
                "commonest of this token, or of all": most,
                **({"this token's last": last[token]} if known else {}),
                **({"commonest of this token": most} if known else {}),
            }
            for name, guess in foretold.items():
                found[name].append(overlap(guess, now) / now.size)
            adds.append((now.size - overlap(now, chosen[place - 1]),
                         now.size - overlap(most, chosen[place - 1])))  # fmt: skip
        for layer, experts_of in enumerate(now):
            common[layer, experts_of] += 1
            own.setdefault(token, np.zeros_like(common))[layer, experts_of] += 1
        last[token] = now
    chance = np.mean(active / np.array(routed))
    yield {"foretold": "by chance", "share": f"{chance:.3f}", "of tokens": len(adds)}
    for name, each in found.items():
        yield {"foretold": name, "share": f"{np.mean(each):.3f}", "of tokens": len(each)}
    really, said = np.array(adds).T
    script.note(
        f"a node adds {really.mean():.2f} experts to its parent's {chosen[0].size} "
        f"(deviation {really.std():.2f}); {np.corrcoef(really, said)[0, 1] ** 2:.1%} of what "
        f"differs is foretold; the better of two adds {saving(really, said):.1%} fewer, "
        f"{saving(really, really):.1%} if all were known"
    )


def choices(model: str, text: str, num_tokens: int) -> tuple[list[int], Chosen, list[int]]:
    """Tokens, the experts that each chose [tokens, layers, active], and how many there are in each
    layer.
    """
    noted: list[Chosen] = []
    routed: list[int] = []

    def choose(part: Any, *rest: Any) -> Any:
        found = original(part, *rest)
        noted.append(np.sort(found[0]))
        routed.append(part.experts)
        return found

    original = experts.choose
    options: dict[str, Any] = {"backend": "reference", "drafters": "none", "context": 1024}
    plan = edgespec.plan(model, **options)
    with open_model(resolve(model)) as file, patch.object(experts, "choose", choose):
        ids = file.tokenizer.encode(text)[:num_tokens]
        with ReferenceTarget(file, plan) as target:
            target.own.prefill(ids)
    if not noted:
        raise OptionError(f"{model} mixes no experts; name a model that does")
    layers = len(noted) // len(ids)
    return ids, np.array(noted).reshape(len(ids), layers, -1), routed[:layers]


def best(counts: Chosen, active: int) -> Chosen:
    """The experts of each layer that were chosen most, [layers, active]."""
    return np.argsort(-counts, axis=1, kind="stable")[:, :active]


def overlap(one: Chosen, other: Chosen) -> int:
    """Experts that both name, all layers together."""
    return int((one[:, :, None] == other[:, None, :]).sum())


def saving(really: Chosen, said: Chosen) -> float:
    """How many fewer experts the node of a random pair adds that is said to add fewer; a share."""
    pairs = np.random.default_rng(0).integers(0, len(really), (20000, 2))
    better = np.take_along_axis(pairs, said[pairs].argmin(axis=1)[:, None], 1)[:, 0]
    ties = said[pairs[:, 0]] == said[pairs[:, 1]]
    taken = np.where(ties, really[pairs].mean(axis=1), really[better])
    return float(1.0 - taken.mean() / really.mean())


if __name__ == "__main__":
    script.run()
