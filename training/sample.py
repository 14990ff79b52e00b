"""Plain sampling from a checkpoint, to look at what was learnt; slow and simple on purpose."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer

from training.data import END_OF_TEXT, TURN_END, TURN_START
from training.model import TinyLlama


def as_chat(text: str) -> str:
    """Return one user turn in the chat template, ready for the reply."""
    return f"{TURN_START}user\n{text}{TURN_END}\n{TURN_START}assistant\n"


def sample(
    model: TinyLlama,
    tokenizer: Tokenizer,
    prompt: str,
    max_tokens: int = 120,
    temperature: float = 0.0,
    seed: int = 0,
) -> str:
    """Return the model's continuation of `prompt`; temperature 0 takes the likeliest token."""
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = tokenizer.encode(prompt).ids
    ends = {tokenizer.token_to_id(END_OF_TEXT), tokenizer.token_to_id(TURN_END)}
    start = len(ids)
    room = min(max_tokens, model.shape.context_tokens - start)
    for _ in range(room):
        with torch.inference_mode():
            last = model.hidden(torch.tensor([ids]))[0][-1]
            logits = model.logits(last[0, -1])
        if temperature > 0:
            shares = torch.softmax(logits / temperature, -1)
            chosen = int(torch.multinomial(shares, 1, generator=generator).item())
        else:
            chosen = int(logits.argmax().item())
        if chosen in ends:
            break
        ids.append(chosen)
    text: str = tokenizer.decode(ids[start:])
    return text
