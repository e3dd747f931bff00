#!/usr/bin/env bash
# Train an SSD that finds handwritten digits on canvases, print its mean average precision, and draw
# what it finds to models/ssd_digits/boxes.png.
#
# usage: scripts/train_ssd_digits.sh [-n RANKS] [flags of pcaffe train …]
#
#   -n RANKS   train on that many ranks of this machine under mpirun (default: 1); they share the
#              batch size

set -eu
# shellcheck source=scripts/ranks.sh
. "$(cd "$(dirname "$0")" && pwd -P)/ranks.sh"
data/mnist/get_mnist.sh
data/digit_canvases/create_digit_canvases.sh

model=models/ssd_digits data=data/digit_canvases
weights=$model/ssd_digits_iter_1200.caffemodel
pcaffe_on "$ranks" train --solver=$model/solver.prototxt --global_batch "$@"
pcaffe_on "$ranks" test --model=$model/train_test.prototxt --weights=$weights --iterations=10
PYTHONPATH=$repository "$(python_of_pcaffe)" docs/examples/draw_boxes.py $model/deploy.prototxt \
  $weights $data/labelmap.prototxt $model/boxes.png $data/test/000{017,029,053,103,105}.png
