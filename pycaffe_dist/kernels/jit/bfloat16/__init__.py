"""Products whose factors are bfloat16 and whose sums are float32, for inference."""
