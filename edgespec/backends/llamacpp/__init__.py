"""llama.cpp as a backend, through the low-level API of llama-cpp-python."""
