"""The parameter server: the exchange, and the ranks that own parameters."""
