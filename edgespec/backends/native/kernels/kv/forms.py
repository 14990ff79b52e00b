"""How keys and values are stored that are not f16: bits of a number, and its place in a byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.system.records import dataclass

if TYPE_CHECKING:  # whoever only looks a form up needs nothing that emits code
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


FORMS = {form.name: form for form in (Form("int8", 8), Form("q4", 4))}
