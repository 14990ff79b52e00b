"""Pairwise merging of neighbours by priority: the loop that BPE and SentencePiece share."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import AnyStr


def merge(parts: list[AnyStr], rank: Callable[[AnyStr, AnyStr], float | None]) -> list[AnyStr]:
    """Join the neighbours of lowest rank, leftmost first among equals, until none has a rank.

    A heap of candidates over a linked list: n log n in the number of parts, whatever the text.
    Source: llama.cpp's `llm_tokenizer_spm_session` and `llm_tokenizer_bpe_session`, whose order
    this is. Consumes `parts`.
    """
    after = [*range(1, len(parts)), -1]
    before = [*range(-1, len(parts) - 1)]
    heap: list[tuple[float, int, int, int]] = []
    for left in range(len(parts) - 1):
        found = rank(parts[left], parts[left + 1])
        if found is not None:
            heap.append((found, left, left + 1, len(parts[left]) + len(parts[left + 1])))
    heapq.heapify(heap)
    while heap:
        _, left, right, length = heapq.heappop(heap)
        # Stale when either side has been merged away or has grown since.
        if not parts[left] or not parts[right] or len(parts[left]) + len(parts[right]) != length:
            continue
        parts[left] += parts[right]
        parts[right] = parts[right][:0]
        after[left] = after[right]
        if after[right] >= 0:
            before[after[right]] = left
        for one, two in ((before[left], left), (left, after[left])):
            if one >= 0 and two >= 0:
                found = rank(parts[one], parts[two])
                if found is not None:
                    heapq.heappush(heap, (found, one, two, len(parts[one]) + len(parts[two])))
    return [part for part in parts if part]
