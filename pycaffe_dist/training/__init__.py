"""A training run: the trainer, the engine that starts exchanges, consistency checks, signals."""
