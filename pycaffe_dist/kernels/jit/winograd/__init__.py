"""Winograd's minimal filtering: transforms of tiles, products, and when they are worth it."""
