"""GGUF files: the header, validated before it is trusted, and the tensors behind it."""
