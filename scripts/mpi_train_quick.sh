#!/usr/bin/env bash
# Train CIFAR-10 quick on several machines: 4,000 iterations, then 1,000 at a tenth of the rate.
#
# usage: scripts/mpi_train_quick.sh -machinefile FILE -n RANKS [flags of pcaffe train …]
#
#   -machinefile FILE   the hosts, a line each: `host1 slots=1` starts one rank there
#   -n RANKS            the number of ranks over all hosts
#
# Every host needs this folder at the same path, with `make install` done there (or a shared file
# system), the LMDBs of scripts/train_cifar10_quick.sh, and ssh access without a password.

set -eu
script=$(readlink -f "$0")
# shellcheck source=scripts/environment.sh
. "$(dirname "$script")/environment.sh"

machines= ranks=
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help | -help) usage; exit 0 ;;
    -machinefile | --machinefile) machines=${2:?"-machinefile needs a file"}; shift 2 ;;
    -n) ranks=${2:?"-n needs a number of ranks"}; shift 2 ;;
    *) break ;;
  esac
done
if [ -z "$machines" ] || [ -z "$ranks" ]; then
  usage >&2
  exit 1
fi

case $machines in /*) ;; *) machines=$started_in/$machines ;; esac

# A rank works with several threads: leave the binding to cores to pcaffe.
mpi=("$(command -v mpirun)" --bind-to none --machinefile "$machines" -n "$ranks" "$(command -v pcaffe)")
model=models/cifar10_quick/cifar10_quick
"${mpi[@]}" train --solver=${model}_solver.prototxt "$@"
"${mpi[@]}" train --solver=${model}_solver_lr1.prototxt \
  --snapshot=${model}_iter_4000.solverstate "$@"
