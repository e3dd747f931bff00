"""Caffe's file formats: messages, prototxts, binary protobufs and their upgrade from old versions.

Imports nothing, so that programs load only the parts that they use: ``caffe_pb2`` (the messages),
``text`` (prototxts), ``binary`` (snapshots and means), ``upgrade`` (old nets and solvers).
"""
