"""From a file's metadata to a `ModelSpec`: one module for each family of architectures."""
