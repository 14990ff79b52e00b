"""Models in other formats than the one they came in: GGUF to ONNX."""
