"""Snapshots as Caffe writes them: weights and solver states, as binary protobuf or HDF5.

``caffemodel`` has the weights, ``solverstate`` the states.
"""
