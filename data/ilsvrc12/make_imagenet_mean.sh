#!/usr/bin/env bash
# Compute the mean image of ilsvrc12_train_lmdb, imagenet_mean.binaryproto, in this script's folder.
#
# usage: data/ilsvrc12/make_imagenet_mean.sh

set -eu
# shellcheck source=data/common.sh
. "$(cd "$(dirname "$0")" && pwd -P)/../common.sh"

take_nothing "$@"
cd "$repository/data/ilsvrc12"
if [ ! -d ilsvrc12_train_lmdb ]; then
  say "there is no data/ilsvrc12/ilsvrc12_train_lmdb: run data/ilsvrc12/create_imagenet.sh first"
  exit 1
fi
tool compute_image_mean ilsvrc12_train_lmdb imagenet_mean.binaryproto
echo "data/ilsvrc12/imagenet_mean.binaryproto: created"
