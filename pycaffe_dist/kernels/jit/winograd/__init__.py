"""Winograd convolutions: transforms of tiles, products, and when they are worth it."""
