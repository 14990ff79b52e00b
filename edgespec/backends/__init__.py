"""What computes logits: our kernels, llama.cpp, ONNX Runtime, and plain NumPy to test them by."""
