"""Caffe's file formats: messages, prototxts, binary protobufs and their upgrade from old versions.

Nothing is imported here, so that each part costs only what it needs: ``caffe_pb2`` (the messages),
``text`` (prototxts), ``binary`` (snapshots and means), ``upgrade`` (old nets and solvers).
"""
