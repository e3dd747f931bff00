"""Published models: where their files are, their weights, and images as they need them."""
