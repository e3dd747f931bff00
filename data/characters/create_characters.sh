#!/usr/bin/env bash
# Make train.h5 and test.h5 with the lists train.txt and test.txt from a text, for models/char_lstm.
#
# usage: data/characters/create_characters.sh [TEXT]
#
# Without a TEXT, pcaffe's own sources are taken.

set -eu
# shellcheck source=data/common.sh
. "$(cd "$(dirname "$0")" && pwd -P)/../common.sh"

text=
case ${1:-} in
  "") ;;
  -h | -help | --help) usage; exit 0 ;;
  *) text=$(realpath "$1") ;;
esac
# The paths in the lists count from the repository's root, where training starts.
cd "$repository"
if [ -z "$text" ]; then
  text=$(mktemp)
  trap 'rm -f "$text"' EXIT
  find pycaffe_dist -name '*.py' | sort | xargs cat > "$text"
fi
"$(python_of_pcaffe)" -m pycaffe_dist.data.examples characters "$text" data/characters
echo "data/characters: train.h5 and test.h5 created"
