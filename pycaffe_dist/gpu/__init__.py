"""GPUs: the real ones, through CuPy, and one that the host plays for the tests."""
