"""Measurements of the machine at hand: links, matrix products, copies, contention, clocks."""
