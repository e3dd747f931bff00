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

case ${1:-} in
  "") ;;
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
  tool convert_mnist_siamese_data "$images" "$labels" "$database" --minloglevel=1
  echo "data/mnist/$database: created"
}

create mnist_siamese_train_leveldb train
create mnist_siamese_test_leveldb t10k
