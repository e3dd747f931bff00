"""Message classes and enums of proto/caffe.proto, under the names of generated code.

They are built from ``caffe.desc`` in a separate descriptor pool: an installed Caffe registers its
``caffe.proto`` in protobuf's default pool, and two files with one name cannot share a pool.
"""

from __future__ import annotations

import sys
from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal import enum_type_wrapper


def _load(path: Path) -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes()).file:
        pool.Add(file)
    return pool


def _publish(names: dict[str, object]) -> None:
    for name, message in DESCRIPTOR.message_types_by_name.items():
        message_class = message_factory.GetMessageClass(message)
        message_class.__module__ = __name__  # pickle looks classes up here
        names[name] = message_class
    for name, enum in DESCRIPTOR.enum_types_by_name.items():
        names[name] = enum_type_wrapper.EnumTypeWrapper(enum)
        names.update((value.name, value.number) for value in enum.values)


DESCRIPTOR = _load(Path(__file__).with_name("caffe.desc")).FindFileByName("caffe.proto")
_publish(vars(sys.modules[__name__]))
