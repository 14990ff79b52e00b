"""ONNX decoders as model files."""
