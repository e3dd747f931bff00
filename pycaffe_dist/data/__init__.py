"""The data of data layers: sources of records, transformation, prefetching, shares of ranks.

Imports nothing, so that the command line and `LayerContext` load only what they use.
"""
