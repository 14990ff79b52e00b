"""Decoders in ONNX format, run by ONNX Runtime under our decode loop."""
