"""Turn proto/caffe.proto into the descriptor set and the type stubs that the package reads.

Run it after a change to the .proto (``make proto``); both outputs are committed, so that an
installed package needs no protoc.  Needs grpcio-tools.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO_FOLDER = ROOT / "proto"
SCHEMA_FOLDER = ROOT / "pycaffe_dist" / "schema"


def generate(folder: Path) -> None:
    """Write caffe.desc and caffe_pb2.pyi into `folder`; raise SystemExit when protoc fails."""
    from grpc_tools import protoc

    status = protoc.main(
        [
            "protoc",
            f"--proto_path={PROTO_FOLDER}",
            f"--descriptor_set_out={folder / 'caffe.desc'}",
            f"--pyi_out={folder}",
            "caffe.proto",
        ]
    )
    if status:
        raise SystemExit(f"protoc failed with status {status}")
    # protoc gives no type to fields that are named like words of Python.
    stubs = folder / "caffe_pb2.pyi"
    stubs.write_text(stubs.read_text().replace("**kwargs)", "**kwargs: object)"))


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else SCHEMA_FOLDER)
