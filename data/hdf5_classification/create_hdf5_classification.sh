#!/usr/bin/env bash
# Make points of two classes, train.h5 and test.h5 with the lists train.txt and test.txt, for
# models/hdf5_classification.
#
# usage: data/hdf5_classification/create_hdf5_classification.sh

set -eu
# shellcheck source=data/common.sh
. "$(cd "$(dirname "$0")" && pwd -P)/../common.sh"

take_nothing "$@"
# The paths in the lists count from the repository's root, where training starts.
cd "$repository"
"$(python_of_pcaffe)" -m pycaffe_dist.data.examples points data/hdf5_classification
echo "data/hdf5_classification: train.h5 and test.h5 created"
