"""GPUs: real ones through CuPy, and an emulated one for the tests."""
