#!/usr/bin/env python3
"""Classifies images from the command line, to a NumPy file (pycaffe's classify.py)."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

import pycaffe_dist as caffe
from pycaffe_dist.errors import PcaffeError, UsageError

MODEL = Path(__file__).parent.parent / "models" / "bvlc_reference_caffenet"


def add_net_flags(parser: argparse.ArgumentParser) -> None:
    """Give ``parser`` the common flags of classify.py and detect.py."""
    add = parser.add_argument
    add("--model_def", default=str(MODEL / "deploy.prototxt"), help="the deploy net")
    add(
        "--pretrained_model",
        default=str(MODEL / "bvlc_reference_caffenet.caffemodel"),
        help="the trained weights",
    )
    add("--gpu", action="store_true", help="compute on a GPU")
    add(
        "--mean_file",
        default="",
        help="the mean to subtract: .npy (channels x height x width, or channels) or .binaryproto; "
        "without one nothing is subtracted",
    )
    add("--input_scale", type=float, help="multiply inputs by this at the end")
    add("--raw_scale", type=float, default=255.0, help="multiply images in [0, 1] by this first")
    add("--channel_swap", default="2,1,0", help="the order of channels; 2,1,0 makes BGR of RGB")


def net_options(options: argparse.Namespace) -> dict:
    """Return the Classifier's or Detector's arguments from these flags."""
    if options.gpu:
        caffe.set_mode_gpu()
    print("GPU mode" if options.gpu else "CPU mode")
    return {
        "mean": read_mean(options.mean_file) if options.mean_file else None,
        "input_scale": options.input_scale,
        "raw_scale": options.raw_scale,
        "channel_swap": numbers(options.channel_swap) or None,
    }


def numbers(text: str) -> list[int]:
    """Return comma-separated integers; raises UsageError."""
    try:
        return [int(part) for part in text.split(",") if part]
    except ValueError:
        raise UsageError(f"needs integers separated by commas, found '{text}'") from None


def read_mean(path: str) -> np.ndarray:
    """Return a mean from a NumPy file or a .binaryproto; raises UsageError."""
    try:
        if not path.endswith(".binaryproto"):
            return np.load(path)
        blob = caffe.proto.caffe_pb2.BlobProto.FromString(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the mean '{path}': {error}") from None
    return np.squeeze(caffe.io.blobproto_to_array(blob), axis=0)


def load_inputs(path: Path, ending: str) -> list[np.ndarray]:
    """Return the images of a NumPy file, of a folder, or the one of an image file."""
    print(f"Loading {'folder' if path.is_dir() else 'file'}: {path}")
    if path.suffix == ".npy":
        return list(np.load(path))
    files = sorted(path.glob(f"*.{ending}")) if path.is_dir() else [path]
    if not files:
        raise UsageError(f"folder '{path}' has no *.{ending}")
    return [caffe.io.load_image(file) for file in files]


def run(argv: list[str]) -> None:
    """Classify as ``argv`` says; raises PcaffeError."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("input_file", help="an image, a folder of images, or a .npy of images")
    parser.add_argument("output_file", help="the .npy to write, a row for each image")
    add_net_flags(parser)
    parser.add_argument("--center_only", action="store_true", help="one crop instead of ten")
    parser.add_argument("--images_dim", default="256,256", help="height,width before cropping")
    parser.add_argument("--ext", default="jpg", help="the ending of the images in a folder")
    options = parser.parse_args(argv)
    classifier = caffe.Classifier(
        options.model_def,
        options.pretrained_model,
        image_dims=numbers(options.images_dim),
        **net_options(options),
    )
    inputs = load_inputs(Path(options.input_file).expanduser(), options.ext)
    print(f"Classifying {len(inputs)} inputs.")
    began = time.perf_counter()
    predictions = classifier.predict(inputs, not options.center_only)
    print(f"Done in {time.perf_counter() - began:.2f} s.")
    print(f"Saving results into {options.output_file}")
    np.save(options.output_file, predictions)


def main(tool=run) -> int:
    """Run a tool with the process's arguments; return the exit status."""
    try:
        tool(sys.argv[1:])
    except (PcaffeError, OSError) as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
