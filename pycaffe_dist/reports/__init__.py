"""What the tools tell about runs, nets and weights: logs, plots, tables, comparisons."""
