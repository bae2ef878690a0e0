"""Programs of PyCUDA, Numba, cuda.core, cuda.bindings, CuPy and PyTorch: one per part of their memory."""
