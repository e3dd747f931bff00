#!/usr/bin/env bash
# Put CIFAR-10's binary files into this script's folder.
#
# usage: data/cifar10/get_cifar10.sh
#
# Files that are there already, with the right checksum, are kept.  Others come from
# CIFAR10_MIRROR, if that is set, else from public mirrors.  A mirror is a folder, or a file:// or
# http(s):// URL of one, that has cifar-10-binary.tar.gz or the .bin files that are in it.

set -eu
# shellcheck source=data/common.sh
. "$(cd "$(dirname "$0")" && pwd -P)/../common.sh"

take_nothing "$@"

archive=cifar-10-binary.tar.gz
mirrors=(
  https://www.cs.toronto.edu/~kriz
  https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10
)
files=(
  data_batch_1.bin cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5
  data_batch_2.bin a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed
  data_batch_3.bin bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67
  data_batch_4.bin 014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48
  data_batch_5.bin 755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add
  test_batch.bin 8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b
)
# A relative mirror counts from where the script was started.
case ${CIFAR10_MIRROR:-} in
  "") ;;
  /* | *://*) mirrors=("$CIFAR10_MIRROR") ;;
  *) mirrors=("$PWD/$CIFAR10_MIRROR") ;;
esac

cd "$repository/data/cifar10"
part=$(mktemp -d .get_cifar10.XXXXXX)
trap 'rm -rf "$part"' EXIT

complete() {
  local folder=$1 i
  for ((i = 0; i < ${#files[@]}; i += 2)); do
    has_sha256 "$folder/${files[i]}" "${files[i + 1]}" || return 1
  done
}

# get FOLDER: gets all files from a folder or URL into $part; fails unless they are the right ones.
get() {
  local folder=${1%/} i
  if fetch "$folder/$archive" "$part/$archive"; then
    tar -xzf "$part/$archive" -C "$part" --strip-components=1 2> /dev/null || true
  else
    fetch "$folder/${files[0]}" "$part/${files[0]}" || return 1
    for ((i = 2; i < ${#files[@]}; i += 2)); do
      fetch "$folder/${files[i]}" "$part/${files[i]}" || return 1
    done
  fi
  if ! complete "$part"; then
    say "$folder has damaged or different files"
    return 1
  fi
}

if complete .; then
  echo "data/cifar10: CIFAR-10 is there already"
  exit 0
fi
for mirror in "${mirrors[@]}"; do
  if get "$mirror"; then
    for ((i = 0; i < ${#files[@]}; i += 2)); do
      mv "$part/${files[i]}" "${files[i]}"
    done
    echo "data/cifar10: CIFAR-10 from $mirror"
    exit 0
  fi
done
say "cannot get CIFAR-10 from ${mirrors[*]}"
say "Set CIFAR10_MIRROR to a folder or URL that has $archive."
exit 1
