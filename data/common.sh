# Sourced by the get_ and create_ scripts below this folder: fetching, checking, finding pcaffe.
# shellcheck shell=bash

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

# usage: prints the comment at the top of the calling script.
usage() {
  sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
}

# take_nothing ARGUMENT …: answers --help, and refuses all else.
take_nothing() {
  case ${1:-} in
    "") ;;
    -h | -help | --help) usage; exit 0 ;;
    *) usage >&2; exit 1 ;;
  esac
}

# take_backend ARGUMENT …: sets backend to lmdb or to what is given; answers --help.
take_backend() {
  backend=lmdb
  case ${1:-} in
    lmdb | leveldb) backend=$1 ;;
    *) take_nothing "$@" ;;
  esac
}

say() {
  echo "$(basename "$0"): $*" >&2
}

# python_of_pcaffe: prints the Python that pcaffe is installed for: $PYTHON, .venv's, or the one beside
# the pcaffe on the path.
python_of_pcaffe() {
  local python=${PYTHON:-} pcaffe
  if [ -z "$python" ] && [ -x "$repository/.venv/bin/python" ]; then
    python=$repository/.venv/bin/python
  fi
  if [ -z "$python" ] && pcaffe=$(command -v pcaffe) && [ -x "${pcaffe%/*}/python" ]; then
    python=${pcaffe%/*}/python
  fi
  echo "${python:-python3}"
}

# tool NAME ARGUMENTS …: runs the command NAME of pcaffe.
tool() {
  local name=$1
  shift
  "$(python_of_pcaffe)" -m pycaffe_dist "$name" "$@"
}

# fetch PLACE TARGET: copies or downloads PLACE (a path, file:// or http(s):// URL) to TARGET;
# fails without a message when it is not there.
fetch() {
  local place=$1 target=$2
  case $place in
    http://* | https://*)
      if command -v curl > /dev/null; then
        curl --fail --silent --location --connect-timeout 15 --retry 2 --output "$target" "$place"
      elif command -v wget > /dev/null; then
        wget --quiet --connect-timeout=15 --tries=3 --output-document="$target" "$place"
      else
        say "neither curl nor wget is installed"
        return 1
      fi
      ;;
    *)
      place=${place#file://}
      [ -f "$place" ] && cp "$place" "$target"
      ;;
  esac
}

# has_sha256 FILE SUM: tells whether FILE is there and has that checksum.
has_sha256() {
  [ -f "$1" ] || return 1
  local found
  if command -v sha256sum > /dev/null; then
    found=$(sha256sum "$1")
  else
    found=$(shasum -a 256 "$1")
  fi
  [ "${found%% *}" = "$2" ]
}

# newer_than DATABASE FILE …: tells whether DATABASE is there and newer than all of the files.
newer_than() {
  local database=$1 file
  shift
  [ -d "$database" ] || return 1
  for file; do
    [ "$database" -nt "$file" ] || return 1
  done
}

# create_from_mnist DATABASE FILES TOOL FLAG …: has TOOL convert FILES-images-idx3-ubyte and
# FILES-labels-idx1-ubyte of data/mnist, unless that has been done.
create_from_mnist() {
  local database=$1 images=$2-images-idx3-ubyte labels=$2-labels-idx1-ubyte name=$3
  shift 3
  if [ ! -f "$images" ] || [ ! -f "$labels" ]; then
    say "there is no data/mnist/$images with its labels: run data/mnist/get_mnist.sh first"
    exit 1
  fi
  if newer_than "$database" "$images" "$labels"; then
    echo "data/mnist/$database: is there already"
    return
  fi
  rm -rf "$database"
  tool "$name" "$images" "$labels" "$database" --minloglevel=1 "$@"
  echo "data/mnist/$database: created"
}
