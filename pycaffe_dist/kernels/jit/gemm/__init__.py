"""Matrix products on microkernels."""
