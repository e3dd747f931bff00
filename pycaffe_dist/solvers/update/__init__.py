"""Updates of parameters: what one needs of a parameter, and the strategies, one file each."""
