"""How ranks come to life: mpirun, the environment that it gives them, restarts after failures."""
