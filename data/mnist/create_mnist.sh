#!/usr/bin/env bash
# Convert the files that get_mnist.sh got into mnist_train_lmdb and mnist_test_lmdb beside them.
#
# usage: data/mnist/create_mnist.sh [lmdb|leveldb]
#
# Databases that are newer than the files are kept, older ones are replaced.

set -eu
# shellcheck source=data/common.sh
. "$(cd "$(dirname "$0")" && pwd -P)/../common.sh"

backend=lmdb
case ${1:-} in
  "") ;;
  lmdb | leveldb) backend=$1 ;;
  -h | -help | --help) usage; exit 0 ;;
  *) usage >&2; exit 1 ;;
esac
cd "$repository/data/mnist"

# create DATABASE FILES: converts FILES-images-idx3-ubyte and FILES-labels-idx1-ubyte.
create() {
  local database=$1 images=$2-images-idx3-ubyte labels=$2-labels-idx1-ubyte
  if [ ! -f "$images" ] || [ ! -f "$labels" ]; then
    say "there is no data/mnist/$images with its labels: run data/mnist/get_mnist.sh first"
    exit 1
  fi
  if newer_than "$database" "$images" "$labels"; then
    echo "data/mnist/$database: is there already"
    return
  fi
  rm -rf "$database"
  tool convert_mnist_data "$images" "$labels" "$database" --backend="$backend" --minloglevel=1
  echo "data/mnist/$database: created"
}

create "mnist_train_$backend" train
create "mnist_test_$backend" t10k
