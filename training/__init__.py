"""The recipe of the bundled model: data, tokenizer, training loop and export to GGUF."""
