#!/usr/bin/env bash
# Train CIFAR-10 quick as Caffe publishes it: 4,000 iterations, then 1,000 at a tenth of the rate.
#
# usage: scripts/train_cifar10_quick.sh [-n RANKS] [flags of pcaffe train …]
#
#   -n RANKS   train on that many ranks of this machine under mpirun (default: 1); they share the
#              published batch size, so the result stays the same

set -eu
# shellcheck source=scripts/ranks.sh
. "$(cd "$(dirname "$0")" && pwd -P)/ranks.sh"
data/cifar10/get_cifar10.sh
data/cifar10/create_cifar10.sh

model=models/cifar10_quick/cifar10_quick
pcaffe_on "$ranks" train --solver=${model}_solver.prototxt --global_batch "$@"
pcaffe_on "$ranks" train --solver=${model}_solver_lr1.prototxt --global_batch \
  --snapshot=${model}_iter_4000.solverstate "$@"
