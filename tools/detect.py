#!/usr/bin/env python3
"""Classifies windows of images from the command line (pycaffe's detect.py).

A .csv input lists windows: its header names filename, ymin, xmin, ymax and xmax, in any order.
A .txt input lists images, and selective search proposes the windows.  The output is a .csv with a
column for each class, or an .h5 with the datasets filename, window and prediction.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from pathlib import Path

import numpy as np
from classify import add_net_flags, main, net_options

import pycaffe_dist as caffe
from pycaffe_dist.errors import UsageError
from pycaffe_dist.zoo.detecting import EDGES, read_windows


def write(path: Path, detections: list[dict]) -> None:
    """Write detections as CSV or HDF5, by the file's ending; raises UsageError."""
    if path.suffix == ".csv":
        classes = len(detections[0]["prediction"].reshape(-1)) if detections else 0
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["filename", *EDGES, *(f"class{number}" for number in range(classes))])
            for found in detections:
                values = found["prediction"].reshape(-1).tolist()
                writer.writerow([found["filename"], *found["window"], *values])
        return
    import h5py

    with h5py.File(path, "w") as file:
        for key in ("filename", "window", "prediction"):
            values = [found[key] for found in detections]
            file[key] = values if key == "filename" else np.asarray(values)


def run(argv: list[str]) -> None:
    """Detect as ``argv`` says; raises PcaffeError."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("input_file", type=Path, help="a .csv of windows or a .txt of images")
    parser.add_argument("output_file", type=Path, help="the .csv or .h5 to write")
    add_net_flags(parser)
    parser.add_argument(
        "--crop_mode",
        default="selective_search",
        choices=("list", "selective_search"),
        help="where windows come from",
    )
    parser.add_argument(
        "--context_pad", type=int, default=16, help="pixels of context around a window"
    )
    options = parser.parse_args(argv)
    net = net_options(options)
    if net["mean"] is not None and net["mean"].ndim == 3:
        # One value per channel, because a mean image has no position for windows.
        net["mean"] = net["mean"].mean(axis=(1, 2))
    detector = caffe.Detector(
        options.model_def, options.pretrained_model, context_pad=options.context_pad, **net
    )
    began = time.perf_counter()
    print("Loading input...")
    if options.crop_mode == "list":
        detections = detector.detect_windows(read_windows(options.input_file))
    elif options.input_file.suffix == ".txt":
        names = options.input_file.read_text().split("\n")
        detections = detector.detect_selective_search([name for name in names if name.strip()])
    else:
        raise UsageError("selective search needs a .txt of images; use --crop_mode=list for a .csv")
    print(f"Processed {len(detections)} windows in {time.perf_counter() - began:.3f} s.")
    write(options.output_file, detections)
    print(f"Saved to {options.output_file}.")


if __name__ == "__main__":
    sys.exit(main(run))
