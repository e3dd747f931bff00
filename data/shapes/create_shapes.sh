#!/usr/bin/env bash
# Draw images of shapes with their masks, train.h5 and test.h5 with the lists train.txt and test.txt,
# for models/segnet_shapes.
#
# usage: data/shapes/create_shapes.sh

set -eu
# shellcheck source=data/common.sh
. "$(cd "$(dirname "$0")" && pwd -P)/../common.sh"

take_nothing "$@"
# The paths in the lists count from the repository's root, where training starts.
cd "$repository"
"$(python_of_pcaffe)" -m pycaffe_dist.data.examples shapes data/shapes
echo "data/shapes: train.h5 and test.h5 created"
