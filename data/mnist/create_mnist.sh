#!/usr/bin/env bash
# Convert the files that get_mnist.sh got into mnist_train_lmdb and mnist_test_lmdb beside them.
#
# usage: data/mnist/create_mnist.sh [lmdb|leveldb]
#
# Databases that are newer than the files are kept, older ones are replaced.

set -eu
# shellcheck source=data/common.sh
. "$(cd "$(dirname "$0")" && pwd -P)/../common.sh"

take_backend "$@"
cd "$repository/data/mnist"

create_from_mnist "mnist_train_$backend" train convert_mnist_data --backend="$backend"
create_from_mnist "mnist_test_$backend" t10k convert_mnist_data --backend="$backend"
