"""The nets of models/, as programs."""
