#!/usr/bin/env bash
# Make canvases with digits from the files that data/mnist/get_mnist.sh got, and the databases of them
# for AnnotatedData layers: train_lmdb and test_lmdb, beside this script.
#
# usage: data/digit_canvases/create_digit_canvases.sh [TRAIN_COUNT TEST_COUNT]
#
# Labels are in labelmap.prototxt: digit d has label d + 1.  test_name_size.txt has the names and
# sizes of the test images, in the order of test_lmdb.

set -eu
# shellcheck source=data/common.sh
. "$(cd "$(dirname "$0")" && pwd -P)/../common.sh"

case ${1:-} in
  [0-9]*) ;;
  *) take_nothing "$@" ;;
esac
cd "$repository/data/digit_canvases"
if [ ! -f ../mnist/train-images-idx3-ubyte ]; then
  say "there is no data/mnist/train-images-idx3-ubyte: run data/mnist/get_mnist.sh first"
  exit 1
fi

"$(python_of_pcaffe)" -m pycaffe_dist.data.canvases ../mnist . "$@"
for part in train test; do
  tool convert_annoset --anno_type=detection --label_type=xml --label_map_file=labelmap.prototxt \
    --check_label --encoded --redo --minloglevel=1 ./ "$part.txt" "${part}_lmdb"
done
tool get_image_size --minloglevel=1 . test.txt test_name_size.txt
echo "data/digit_canvases: train_lmdb and test_lmdb created"
