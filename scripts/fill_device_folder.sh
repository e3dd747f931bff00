#!/usr/bin/env bash
# Fill .device/ with all that tests/gpu/on_device.py needs on a machine with a GPU and no network.
#
# usage: scripts/fill_device_folder.sh [PACKAGE …]
#
#   PACKAGE   a further package whose wheel that machine lacks, such as 'numpy==2.4.6'
#
# Makes wheels/ (for Python $PYTHON_VERSION, 3.12 by default, on x86-64 Linux) and mnist/ there.  The
# front end of cuDNN has the version that setup.cfg asks for; wheels bring no dependencies along.

set -eu
# shellcheck source=scripts/environment.sh
. "$(cd "$(dirname "$0")" && pwd -P)/environment.sh"

case ${1:-} in
  -h | --help | -help) usage; exit 0 ;;
  -*) usage >&2; exit 1 ;;
esac

cd "$repository"
front_end=$(sed -n 's/^ *\(nvidia-cudnn-frontend.*\)/\1/p' setup.cfg)
platforms=()
for platform in manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014; do
  platforms+=(--platform "${platform}_x86_64")
done
rm -rf .device/wheels
mkdir -p .device/wheels .device/mnist
"$(python_of_pcaffe)" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
  --python-version "${PYTHON_VERSION:-3.12}" --implementation cp "${platforms[@]}" \
  --dest .device/wheels lmdb plyvel simplejpeg "$front_end" "$@"
data/mnist/get_mnist.sh
for file in train-images-idx3 train-labels-idx1 t10k-images-idx3 t10k-labels-idx1; do
  gzip -c "data/mnist/$file-ubyte" > ".device/mnist/$file-ubyte.gz"
done
du -sh .device/* .device
