#!/usr/bin/env bash
# Put MNIST's four idx files, unpacked, into this script's folder.
#
# usage: data/mnist/get_mnist.sh
#
# Files that are there already, with the right checksum, are kept.  Others come from MNIST_MIRROR,
# if that is set (a folder, or a file:// or http(s):// URL of one, that has the files, gzipped or
# not), else from public mirrors.  If no mirror can be reached and scikit-learn is installed, its much
# smaller set of handwritten digits is used instead of MNIST.

set -eu
# shellcheck source=data/common.sh
. "$(cd "$(dirname "$0")" && pwd -P)/../common.sh"

take_nothing "$@"

public_mirrors=(
  https://storage.googleapis.com/cvdf-datasets/mnist
  https://ossci-datasets.s3.amazonaws.com/mnist
  http://yann.lecun.com/exdb/mnist
)
# Name and SHA-256 of the unpacked file.
files=(
  train-images-idx3-ubyte ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db
  train-labels-idx1-ubyte 65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5
  t10k-images-idx3-ubyte 0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7
  t10k-labels-idx1-ubyte ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2
)
# A relative mirror counts from where the script was started.
case ${MNIST_MIRROR:-} in
  "" | /* | *://*) mirror=${MNIST_MIRROR:-} ;;
  *) mirror=$PWD/$MNIST_MIRROR ;;
esac

cd "$repository/data/mnist"
part=$(mktemp -d .get_mnist.XXXXXX)
trap 'rm -rf "$part"' EXIT

# get NAME SHA256 FOLDER: gets one file from a folder or URL; fails unless it is the right one.
get() {
  local name=$1 sum=$2 folder=${3%/}
  if fetch "$folder/$name.gz" "$part/$name.gz"; then
    gunzip -c "$part/$name.gz" > "$part/$name" 2> /dev/null || true
  else
    fetch "$folder/$name" "$part/$name" || return 1
  fi
  if ! has_sha256 "$part/$name" "$sum"; then
    say "$folder has a damaged or different $name (SHA-256 should be $sum)"
    return 1
  fi
  mv "$part/$name" "$name"
}

get_from_any() {
  local folder
  for folder in "${mirrors[@]}"; do
    if get "$1" "$2" "$folder"; then
      echo "$1: from $folder"
      return 0
    fi
  done
  return 1
}

use_digits_instead() {
  say "MNIST is not to be had: no mirror answers. Set MNIST_MIRROR to a folder or URL that has it."
  if ! "$(python_of_pcaffe)" -c "import sklearn" 2> /dev/null; then
    say "With scikit-learn installed, its small set of digits would take MNIST's place."
    return 1
  fi
  "$(python_of_pcaffe)" -m pycaffe_dist.data.digits "$part"
  for name in "${names[@]}"; do
    # Files that are the same already keep their time, and databases made from them stay.
    cmp --silent "$part/$name" "$name" || mv "$part/$name" "$name"
  done
  say "NOT MNIST: these are scikit-learn's UCI digits (1,797 images), scaled up to 28x28"
}

mirrors=("${public_mirrors[@]}")
if [ -n "$mirror" ]; then
  mirrors=("$mirror")
fi
names=()
for ((i = 0; i < ${#files[@]}; i += 2)); do
  names+=("${files[i]}")
done
for ((i = 0; i < ${#files[@]}; i += 2)); do
  if has_sha256 "${files[i]}" "${files[i + 1]}" || get_from_any "${files[i]}" "${files[i + 1]}"; then
    continue
  fi
  if [ -n "$mirror" ]; then
    say "cannot get ${files[i]} from MNIST_MIRROR=$MNIST_MIRROR"
    exit 1
  fi
  use_digits_instead
  break
done
