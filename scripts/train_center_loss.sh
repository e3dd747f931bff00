#!/usr/bin/env bash
# Train two-dimensional features of MNIST's digits with and without CenterLoss; print the accuracy and
# how close the features of a digit are, and draw them to models/mnist_center_loss/features.png.
#
# usage: scripts/train_center_loss.sh [-n RANKS] [flags of pcaffe train …]
#
#   -n RANKS   train on that many ranks of this machine under mpirun (default: 1); they share the
#              batch size

set -eu
# shellcheck source=scripts/ranks.sh
. "$(cd "$(dirname "$0")" && pwd -P)/ranks.sh"
data/mnist/get_mnist.sh
data/mnist/create_mnist.sh

model=models/mnist_center_loss
for kind in softmax center; do
  pcaffe_on "$ranks" train --solver=$model/${kind}_solver.prototxt --global_batch "$@"
done
PYTHONPATH=$repository "$(python_of_pcaffe)" scripts/center_loss_features.py \
  $model/train_test.prototxt $model/features.png \
  "softmax alone=$model/softmax_iter_1500.caffemodel" \
  "with CenterLoss=$model/center_iter_1500.caffemodel"
