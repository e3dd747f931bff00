#!/usr/bin/env bash
# Put ImageNet's auxiliary files (the lists of images and labels train.txt and val.txt, names of
# classes, Caffe's mean imagenet_mean.binaryproto) into this script's folder.
#
# usage: data/ilsvrc12/get_ilsvrc_aux.sh
#
# caffe_ilsvrc12.tar.gz comes from ILSVRC_MIRROR, if that is set (a folder, or a file:// or
# http(s):// URL of one), else from Berkeley.

set -eu
# shellcheck source=data/common.sh
. "$(cd "$(dirname "$0")" && pwd -P)/../common.sh"

take_nothing "$@"

archive=caffe_ilsvrc12.tar.gz
mirrors=(
  http://dl.caffe.berkeleyvision.org
  https://dl.caffe.berkeleyvision.org
)
# A relative mirror counts from where the script was started.
case ${ILSVRC_MIRROR:-} in
  "") ;;
  /* | *://*) mirrors=("$ILSVRC_MIRROR") ;;
  *) mirrors=("$PWD/$ILSVRC_MIRROR") ;;
esac

cd "$repository/data/ilsvrc12"
if [ -f train.txt ] && [ -f val.txt ]; then
  echo "data/ilsvrc12: the auxiliary files are there already"
  exit 0
fi
part=$(mktemp -d .get_ilsvrc_aux.XXXXXX)
trap 'rm -rf "$part"' EXIT
for mirror in "${mirrors[@]}"; do
  if fetch "${mirror%/}/$archive" "$part/$archive" &&
    tar -xzf "$part/$archive" -C "$part" 2> /dev/null && [ -f "$part/val.txt" ]; then
    rm "$part/$archive"
    mv "$part"/* .
    echo "data/ilsvrc12: the auxiliary files from $mirror"
    exit 0
  fi
done
say "cannot get $archive from ${mirrors[*]}"
say "Set ILSVRC_MIRROR to a folder or URL that has it."
exit 1
