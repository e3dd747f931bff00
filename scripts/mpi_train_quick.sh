#!/usr/bin/env bash
# Train CIFAR-10 quick on several machines: 4,000 iterations, then 1,000 at a tenth of the rate.
#
# usage: scripts/mpi_train_quick.sh -machinefile FILE -n RANKS [flags of pcaffe train …]
#
#   -machinefile FILE   the hosts, a line each: `host1 slots=1` starts one rank there
#   -n RANKS            the number of ranks over all hosts
#
# Every host needs this folder at the same path, by a shared file system or with `make install`,
# data/cifar10/get_cifar10.sh and data/cifar10/create_cifar10.sh run there, and ssh without a
# password.  The batch size is the published one times the number of ranks; with --global_batch the
# ranks divide it.

set -eu
# shellcheck source=scripts/environment.sh
. "$(cd "$(dirname "$0")" && pwd -P)/environment.sh"

machines='' ranks=''
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help | -help) usage; exit 0 ;;
    -machinefile | --machinefile) machines=$(realpath "${2:?"-machinefile needs a file"}"); shift 2 ;;
    -n) ranks=${2:?"-n needs a number of ranks"}; shift 2 ;;
    *) break ;;
  esac
done
if [ -z "$machines" ] || [ -z "$ranks" ]; then
  usage >&2
  exit 1
fi
if [ ! -r "$machines" ]; then
  say "cannot read the machinefile $machines"
  exit 1
fi
# If -n is not a number, mpirun starts as many ranks as there are slots.
case $ranks in
  *[!0-9]* | 0)
    say "-n needs a number of ranks, at least 1, not '$ranks'"
    exit 1
    ;;
esac

# The paths in models/ count from the repository's root.
cd "$repository"
# Full paths work on the other hosts, too.  A rank has several threads, so it is not bound to one
# core.
mpi=("$(command -v mpirun)" --bind-to none --machinefile "$machines" -n "$ranks")
pcaffe=$(command -v pcaffe)
model=models/cifar10_quick/cifar10_quick
"${mpi[@]}" "$pcaffe" train --solver=${model}_solver.prototxt "$@"
"${mpi[@]}" "$pcaffe" train --solver=${model}_solver_lr1.prototxt \
  --snapshot=${model}_iter_4000.solverstate "$@"
