#!/usr/bin/env bash
# Convert ImageNet's images into ilsvrc12_train_lmdb and ilsvrc12_val_lmdb in this script's folder.
#
# usage: data/ilsvrc12/create_imagenet.sh [--resize] TRAIN_FOLDER VAL_FOLDER [flags of convert_imageset …]
#
#   TRAIN_FOLDER   has a folder of images for each class, as in train.txt
#   VAL_FOLDER     has the images that val.txt lists
#   --resize       resize all to 256x256; not needed if they have this size
#
# The lists come from data/ilsvrc12/get_ilsvrc_aux.sh.  Training images are shuffled.

set -eu
# shellcheck source=data/common.sh
. "$(cd "$(dirname "$0")" && pwd -P)/../common.sh"

size=0
while [ $# -gt 0 ]; do
  case $1 in
    -h | -help | --help) usage; exit 0 ;;
    --resize) size=256; shift ;;
    *) break ;;
  esac
done
if [ $# -lt 2 ]; then
  usage >&2
  exit 1
fi
for folder in "$1" "$2"; do
  if [ ! -d "$folder" ]; then
    say "there is no folder $folder"
    exit 1
  fi
done
train=$(realpath "$1") val=$(realpath "$2")
shift 2

cd "$repository/data/ilsvrc12"
for list in train.txt val.txt; do
  if [ ! -f "$list" ]; then
    say "there is no data/ilsvrc12/$list: run data/ilsvrc12/get_ilsvrc_aux.sh first"
    exit 1
  fi
done
for part in train val; do
  tool convert_imageset --resize_height=$size --resize_width=$size --shuffle "$@" \
    "${!part}/" "$part.txt" "ilsvrc12_${part}_lmdb"
  echo "data/ilsvrc12/ilsvrc12_${part}_lmdb: created"
done
