"""Which exchange each parameter gets: the plan, the search for the best one, and simulations."""
