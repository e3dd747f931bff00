#!/usr/bin/env bash
# Divide the files that get_cifar10.sh got into two tasks, for models/mobilenet_cifar10: seven classes
# in cifar10_seven_train_lmdb and cifar10_seven_test_lmdb beside them, three other classes, with few
# training images, in cifar10_three_train_lmdb and cifar10_three_test_lmdb.
#
# usage: data/cifar10/create_cifar10_parts.sh
#
# Databases that are newer than the files are kept, older ones are replaced.

set -eu
# shellcheck source=data/common.sh
. "$(cd "$(dirname "$0")" && pwd -P)/../common.sh"

take_nothing "$@"
cd "$repository/data/cifar10"

files=(data_batch_{1,2,3,4,5}.bin test_batch.bin)
databases=(cifar10_{seven,three}_{train,test}_lmdb)
for file in "${files[@]}"; do
  if [ ! -f "$file" ]; then
    say "there is no data/cifar10/$file: run data/cifar10/get_cifar10.sh first"
    exit 1
  fi
done
for database in "${databases[@]}"; do
  if ! newer_than "$database" "${files[@]}"; then
    rm -rf "${databases[@]}"
    PYTHONPATH=$repository "$(python_of_pcaffe)" -m pycaffe_dist.data.cifar_parts .
    echo "data/cifar10: ${databases[*]} created"
    exit 0
  fi
done
echo "data/cifar10: ${databases[*]} are there already"
