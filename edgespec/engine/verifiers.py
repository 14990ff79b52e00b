"""Which verifier a request takes."""

from __future__ import annotations

from edgespec.engine.request import Request
from edgespec.models.file import ModelFile
from edgespec.verification.constraint import Constraint
from edgespec.verification.match import Verifier
from edgespec.verification.shaped_verifier import ShapedVerifier
from edgespec.verification.shaping import Shaping


def verifier_for(request: Request, file: ModelFile, max_nodes: int) -> Verifier:
    """What compares a request's drafts with the model's own tokens."""
    vocab_size = file.spec.vocab_size
    if request.lossy:
        from edgespec.verification.typical import TypicalVerifier

        return TypicalVerifier(vocab_size, request.sampling, max_nodes)
    if request.shaping is not None or request.grammar is not None:
        tokenizer, grammar = file.tokenizer, request.grammar
        return ShapedVerifier(
            vocab_size,
            request.sampling,
            max_nodes,
            request.shaping or Shaping(),
            tokenizer.token_bytes,
            None
            if grammar is None
            else Constraint(tokenizer, grammar, request.grammar_after or ""),
        )
    return Verifier(vocab_size, request.sampling, max_nodes)
