"""Ranks and their connections: MPI, the thread that owns it, memory windows, paths between GPUs."""
