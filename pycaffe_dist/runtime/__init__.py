"""Ranks, the thread that talks to MPI, the plan of exchanges and the engine that carries it out."""
