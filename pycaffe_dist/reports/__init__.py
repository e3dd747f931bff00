"""Reports about runs, nets and weights: logs, plots, tables, comparisons."""
