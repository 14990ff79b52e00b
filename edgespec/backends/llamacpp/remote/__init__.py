"""llama.cpp's RPC devices: workers on this or other machines that hold layers and compute them."""
