"""Ranks and what joins them: MPI, the thread that owns it, memory windows, paths between GPUs."""
