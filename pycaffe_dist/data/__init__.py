"""What data layers read: sources of records, their transformation, prefetching and partition.

Nothing is imported here, so that the command line and `LayerContext` pay only for what they use.
"""
