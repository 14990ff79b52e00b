"""How keys and values are stored that are not f16: bits of a number, and its place in a byte."""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.backends.native.kernels.codegen.emit import I32, Emitter, Value
from edgespec.backends.native.kernels.matmul.integer_tile import Operations


@dataclass(frozen=True, slots=True)
class Form:
    """How numbers of a KV type are stored."""

    name: str
    bits: int

    @property
    def offset(self) -> int:
        """Stored is the number plus this."""
        return 1 << (self.bits - 1)

    @property
    def in_byte(self) -> int:
        """Quads of dimensions, or vectors of values, that share their bytes."""
        return 8 // self.bits

    @property
    def largest(self) -> int:
        """The largest number a byte becomes."""
        return (1 << self.bits) - 1

    def starts(self, operations: Operations) -> bool:
        """Whether sums start at the offset's share: not where 128 is taken out for us."""
        return not (operations.signed and self.offset == 128)

    def part(self, emitter: Emitter, raw: Value, index: Value) -> Value:
        """The bytes of one of the quads, by its index, that lie in these."""
        if self.in_byte == 1:
            return raw
        builder = emitter.builder
        shift = emitter.splat(builder.trunc(builder.mul(index, emitter.integer(self.bits)), I32))
        return builder.and_(builder.lshr(raw, shift), emitter.constant(0x0F0F0F0F))


FORMS = {form.name: form for form in (Form("int8", 8), Form("q4", 4))}
