#!/usr/bin/env bash
# Convert the files that get_cifar10.sh got into cifar10_train_lmdb and cifar10_test_lmdb beside
# them, and compute the training images' mean, mean.binaryproto.
#
# usage: data/cifar10/create_cifar10.sh [lmdb|leveldb]
#
# Databases that are newer than the files are kept, older ones are replaced.

set -eu
# shellcheck source=data/common.sh
. "$(cd "$(dirname "$0")" && pwd -P)/../common.sh"

take_backend "$@"
cd "$repository/data/cifar10"

files=(data_batch_{1,2,3,4,5}.bin test_batch.bin)
train=cifar10_train_$backend
test=cifar10_test_$backend
for file in "${files[@]}"; do
  if [ ! -f "$file" ]; then
    say "there is no data/cifar10/$file: run data/cifar10/get_cifar10.sh first"
    exit 1
  fi
done
if newer_than "$train" "${files[@]}" && newer_than "$test" "${files[@]}"; then
  echo "data/cifar10/$train and $test: are there already"
else
  rm -rf "$train" "$test"
  tool convert_cifar_data . . "$backend" --minloglevel=1
  echo "data/cifar10/$train and $test: created"
fi
if [ mean.binaryproto -nt "$train" ]; then
  echo "data/cifar10/mean.binaryproto: is there already"
else
  tool compute_image_mean --backend="$backend" "$train" mean.binaryproto --minloglevel=1
  echo "data/cifar10/mean.binaryproto: created"
fi
