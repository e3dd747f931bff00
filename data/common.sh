# Sourced by the get_ and create_ scripts below this folder: fetching, checking, finding pcaffe.
# shellcheck shell=bash

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

# usage: prints the comment at the top of the calling script.
usage() {
  sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
}

say() {
  echo "$(basename "$0"): $*" >&2
}

# python_of_pcaffe: prints the Python that pcaffe is installed for: $PYTHON, .venv's or python3.
python_of_pcaffe() {
  local python=${PYTHON:-}
  if [ -z "$python" ] && [ -x "$repository/.venv/bin/python" ]; then
    python=$repository/.venv/bin/python
  fi
  echo "${python:-python3}"
}

# tool NAME ARGUMENTS …: runs the command NAME of pcaffe.
tool() {
  local name=$1
  shift
  "$(python_of_pcaffe)" "$repository/tools/$name.py" "$@"
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
