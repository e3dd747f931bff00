#!/usr/bin/env bash
# Download MNIST if necessary, train LeNet on it, and print the test accuracy.
#
# usage: scripts/train_lenet.sh [-n RANKS] [--quick] [flags of pcaffe train …]
#
#   -n RANKS   train on that many ranks of this machine under mpirun (default: 1)
#   --quick    fewer iterations than Caffe's published solver has

set -eu
# shellcheck source=scripts/environment.sh
. "$(cd "$(dirname "$0")" && pwd -P)/environment.sh"

ranks=1
solver=models/lenet/lenet_solver.prototxt
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help | -help) usage; exit 0 ;;
    -n) ranks=${2:?"-n needs a number of ranks"}; shift 2 ;;
    --quick) solver=models/lenet/lenet_quick_solver.prototxt; shift ;;
    *) break ;;
  esac
done

# The paths in models/ count from the repository's root.
cd "$repository"
data/mnist/get_mnist.sh
data/mnist/create_mnist.sh

log=$(mktemp -d)
trap 'rm -rf "$log"' EXIT
pcaffe_on "$ranks" train --solver="$solver" --log_dir="$log" "$@"

accuracy=$(sed -n 's/.*Test net output #[0-9]*: accuracy = //p' "$log/pcaffe.INFO" | tail -n 1)
# get_mnist.sh may have used other digits instead of MNIST; MNIST's test images have this size.
images=MNIST
if [ "$(wc -c < data/mnist/t10k-images-idx3-ubyte)" -ne 7840016 ]; then
  images="scikit-learn's UCI digits, NOT MNIST"
fi
echo
echo "LeNet on $ranks rank(s), $images: test accuracy $accuracy"
