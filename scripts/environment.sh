# Sourced by the scripts beside it: the pcaffe of .venv, and an mpirun that works everywhere.
# shellcheck shell=bash

# shellcheck disable=SC2034  # the scripts resolve their own arguments against it
started_in=$PWD
# The repository root is the working folder: the paths in models/ count from there.
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
if [ -x .venv/bin/pcaffe ]; then
  PATH="$PWD/.venv/bin:$PATH"
fi
command -v pcaffe > /dev/null || { echo "pcaffe is not installed: run 'make install'" >&2; exit 1; }

# Open MPI refuses these two by default: to run as root, as in containers, and to start more ranks
# than there are cores.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_MCA_rmaps_default_mapping_policy=${PRTE_MCA_rmaps_default_mapping_policy:-:oversubscribe}

# pcaffe_on RANKS COMMAND …: runs pcaffe on this machine, under mpirun if RANKS is more than 1.
pcaffe_on() {
  local ranks=$1
  shift
  if [ "$ranks" -gt 1 ]; then
    mpirun -n "$ranks" pcaffe "$@"
  else
    pcaffe "$@"
  fi
}

# usage: prints the comment at the top of the calling script.
usage() {
  sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
}
