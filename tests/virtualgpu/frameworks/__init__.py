"""Small programs of PyCUDA, Numba, cuda.core, cuda.bindings, CuPy and PyTorch, one for each part of their memory calls."""
