"""Drafts from counted n-grams of several lengths.

"Lossless Acceleration of Large Language Model via Adaptive N-gram Parallel Decoding" (ANPD),
section 3: n-grams of the prompt and of what was written since, kept for several n, the longest that
is known first, shorter ones as it fails. The paper drafts one chain of the most frequent followers;
here followers branch by their counts, and each length is trusted as often as it was right.
"""

from __future__ import annotations

from edgespec.drafting.grown import Kernels
from edgespec.drafting.tables.counted import expand_counted, priors_by_order
from edgespec.drafting.tables.table_drafter import TableDrafter, feed_rows

_ORDERS = 4


class NgramDrafter(TableDrafter):
    """Proposes what followed the text's last tokens before, most often or most lately."""

    name = "ngram"
    orders = _ORDERS
    ways = 4
    priors = priors_by_order(_ORDERS)
    kernels = Kernels(expand_counted, feed_rows)
    callable_from_kernels = True
