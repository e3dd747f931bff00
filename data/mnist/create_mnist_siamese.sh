#!/usr/bin/env bash
# Convert the files that get_mnist.sh got into pairs of digits for models/mnist_siamese:
# mnist_siamese_train_leveldb and mnist_siamese_test_leveldb beside them.
#
# usage: data/mnist/create_mnist_siamese.sh
#
# Databases that are newer than the files are kept, older ones are replaced.

set -eu
# shellcheck source=data/common.sh
. "$(cd "$(dirname "$0")" && pwd -P)/../common.sh"

take_nothing "$@"
cd "$repository/data/mnist"

create_from_mnist mnist_siamese_train_leveldb train convert_mnist_siamese_data
create_from_mnist mnist_siamese_test_leveldb t10k convert_mnist_siamese_data
