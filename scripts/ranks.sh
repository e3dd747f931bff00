# Sourced by scripts whose only flags are -n RANKS and -h: environment.sh, and the number of ranks.
# shellcheck shell=bash disable=SC2034

# shellcheck source=scripts/environment.sh
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

ranks=1
case ${1:-} in
  -h | --help | -help) usage; exit 0 ;;
  -n) ranks=${2:?"-n needs a number of ranks"}; shift 2 ;;
esac

# The paths in models/ count from the repository's root.
cd "$repository"
