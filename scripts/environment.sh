# Sourced by the scripts in this folder: the pcaffe of .venv, and an mpirun that works everywhere.
# shellcheck shell=bash

# shellcheck source=data/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/../data/common.sh"

if [ -x "$repository/.venv/bin/pcaffe" ]; then
  PATH="$repository/.venv/bin:$PATH"
fi
command -v pcaffe > /dev/null || { say "pcaffe is not installed: run 'make install'"; exit 1; }

# Open MPI refuses these two by default: to run as root, as in containers, and to start more ranks
# than there are cores (without "slot" all would then be on the first host).
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_MCA_rmaps_default_mapping_policy=${PRTE_MCA_rmaps_default_mapping_policy:-slot:oversubscribe}

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
