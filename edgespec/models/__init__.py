"""Model files and names: reading, validating, tokenizing, templates."""

from edgespec.models.file import ModelFile, open_model
from edgespec.models.registry import resolve
from edgespec.models.spec import ModelSpec, TensorInfo, TensorType
from edgespec.models.tokenizer import Tokenizer

__all__ = [
    "ModelFile",
    "ModelSpec",
    "TensorInfo",
    "TensorType",
    "Tokenizer",
    "open_model",
    "resolve",
]
