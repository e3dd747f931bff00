#!/usr/bin/env bash
# Train a small MobileNet on seven classes of CIFAR-10, then on the other three with 300 images of
# each: once from the weights of seven classes, once from random ones.  Print both test accuracies.
#
# usage: scripts/finetune_mobilenet.sh [-n RANKS] [flags of pcaffe train …]
#
#   -n RANKS   train on that many ranks of this machine under mpirun (default: 1); they share the
#              batch size

set -eu
# shellcheck source=scripts/ranks.sh
. "$(cd "$(dirname "$0")" && pwd -P)/ranks.sh"
data/cifar10/get_cifar10.sh
data/cifar10/create_cifar10_parts.sh

model=models/mobilenet_cifar10
log=$(mktemp -d)
trap 'rm -rf "$log"' EXIT

# train TASK FLAG …: trains, and sets accuracy to the last test's.
train() {
  local task=$1
  shift
  pcaffe_on "$ranks" train --solver=$model/${task}_solver.prototxt --global_batch \
    --log_dir="$log" "$@"
  accuracy=$(sed -n 's/.*Test net output #[0-9]*: accuracy = //p' "$log/pcaffe.INFO" | tail -n 1)
}

train seven "$@"
seven=$accuracy
train three "$@"
scratch=$accuracy
train three --weights=$model/seven_iter_3300.caffemodel "$@"
echo
echo "Seven classes: test accuracy $seven"
echo "Three other classes, from random weights: test accuracy $scratch"
echo "Three other classes, fine-tuned: test accuracy $accuracy"
