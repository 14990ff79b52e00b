"""Machine code: what each instruction set brings, and the LLVM text that kernels are made of."""
