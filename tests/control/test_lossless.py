"""Speculation never changes the text: the same tokens from any tree, at any temperature."""

from __future__ import annotations

import numpy as np
import pytest
from scripted import ScriptedTarget, decode, plain

from edgespec.control.controller import Controller
from edgespec.control.cost_curve import CostCurve
from edgespec.control.prospects import Prospects
from edgespec.drafting.market.market import Market
from edgespec.drafting.text.suffix_automaton import SuffixAutomatonDrafter
from edgespec.drafting.tree import DraftTree, StepOutcome
from edgespec.verification.match import Verifier
from edgespec.verification.sampling import SamplingParams

PROMPT = [1, 2, 3, 1, 2]
NUM_TOKENS = 60


def params_for(temperature: float, seed: int) -> SamplingParams:
    return SamplingParams(
        temperature=temperature, seed=seed, repetition_penalty=1.1 if seed % 2 else 1.0
    )


class TreesWithTruths:
    """Random trees in which some paths are what the target will say, found by plain decoding."""

    def __init__(self, reply: list[int], vocab_size: int, seed: int) -> None:
        self.reply = reply
        self.vocab_size = vocab_size
        self.rng = np.random.default_rng(seed)

    def __call__(self, text: list[int]) -> DraftTree:
        done = len(text) - len(PROMPT)
        num_nodes = int(self.rng.integers(1, 13))
        tokens, parents, depths = [text[-1]], [-1], [0]
        for node in range(1, num_nodes):
            parent = int(self.rng.integers(max(0, node - 3), node))
            depth = depths[parent] + 1
            truth = self.reply[done : done + depth]
            right = self.rng.random() < 0.7 and len(truth) == depth
            tokens.append(truth[-1] if right else int(self.rng.integers(self.vocab_size)))
            parents.append(parent)
            depths.append(depth)
        return DraftTree(
            np.array(tokens, np.int32),
            np.array(parents, np.int16),
            np.full(num_nodes, 0.5, np.float32),
            np.zeros(num_nodes, np.uint8),
        )


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.2])
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("tree_seed", range(4))
def test_random_trees_leave_the_text_alone(temperature: float, seed: int, tree_seed: int) -> None:
    target = ScriptedTarget(40, memory=1000)
    params = params_for(temperature, seed)
    expected, plain_steps = decode(target, PROMPT, NUM_TOKENS, params, plain)
    trees = TreesWithTruths(expected, 40, tree_seed)
    reply, steps = decode(target, PROMPT, NUM_TOKENS, params, trees)
    assert reply == expected
    assert plain_steps == NUM_TOKENS
    assert steps < 0.8 * NUM_TOKENS


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.2])
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("memory", [1, 1000])
def test_the_automaton_and_the_controller_leave_the_text_alone(
    temperature: float, seed: int, memory: int
) -> None:
    target = ScriptedTarget(20, memory, spread=5.0)
    params = params_for(temperature, seed)
    expected, _ = decode(target, PROMPT, NUM_TOKENS, params, plain)
    curve = {1: 1.0, 4: 1.1, 8: 1.4, 16: 2.5}
    market = Market([SuffixAutomatonDrafter()])
    controller, prospects = Controller(CostCurve(curve), 16), Prospects()
    market.reset(PROMPT)
    verifier = Verifier(20, params, 16)
    text = list(PROMPT)
    steps = 0
    while len(text) < len(PROMPT) + NUM_TOKENS:
        left = len(PROMPT) + NUM_TOKENS - len(text) - 1
        room = controller.draft_room(prospects, left)
        tree = market.propose(room) if room else DraftTree.root(text[-1])
        (count,) = controller.choose([prospects], [tree], 1e-3)
        tree = tree.take(1 + count)
        logits = target.forward(text, tree)
        path, bonus = verifier.verify(logits, tree.tokens, tree.parents, text, len(text) - 1)
        new = [int(tree.tokens[node]) for node in path[1:]] + [bonus]
        outcome = StepOutcome(tree, path, bonus, new)
        seconds = curve.get(len(tree), 1.2)
        if prospects.asked:
            controller.observe([prospects], [outcome], seconds, 1e-3)
        else:
            controller.rest(seconds)
        market.observe(outcome)
        market.extend(new)
        text += new
        steps += 1
    assert text[len(PROMPT) :] == expected
    if temperature == 0.0 and memory == 1 and params.repetition_penalty == 1.0:
        assert steps < 0.6 * NUM_TOKENS  # a function of one token soon goes round in circles
