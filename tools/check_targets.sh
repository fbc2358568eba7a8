#!/usr/bin/env bash
# Runs the kernels' tests over CPU kernels compiled for AVX2 alone and for SSE2 alone. The library holds every loop for
# AVX-512, AVX2 and SSE2, and `make test` sees only those of the processor it runs on, which are not tried again here:
# what a compiler makes of the others it would not tell. Needs g++ and an x86-64 processor.
#
# Usage, from the repository's root: tools/check_targets.sh [python] [words for pytest]
# The libraries lie in build/targets, apart from that of the environment.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-.venv/bin/python}
shift || true
tests=(tests/kernels/test_ops.py tests/kernels/test_upsample.py tests/kernels/test_neighbor_nll.py tests/loss/test_numerics.py
  -k "not cuda and not compile and not one_graph")
[ $# -eq 0 ] || tests=("$@")
if [ "$(uname -m)" != x86_64 ]; then
  echo "==> nothing to check: the kernels are compiled for one target only on $(uname -m)"
  exit 0
fi

check() {
  local name=$1 flags=$2 site=$PWD/build/targets/$1
  echo "==> building the CPU kernels for $name alone into build/targets"
  EDGELOSS_BUILD=cpu CXX=g++ CXXFLAGS="-DEDGELOSS_NO_CLONES $flags" "$python" -m pip install --quiet --no-deps \
    --upgrade --target "$site" .
  echo "==> testing them"
  # PYTHONSAFEPATH: the working directory holds edgeloss too.
  PYTHONPATH=$site PYTHONSAFEPATH=1 "$python" -c "
import edgeloss, sys
sys.exit(edgeloss.__file__ != '$site/edgeloss/__init__.py' or edgeloss.backends()['cpu'] != 'available')
" || { echo "tools/check_targets.sh: the library under $site does not load"; exit 1; }
  env -u CI PYTHONPATH="$site" PYTHONSAFEPATH=1 "$python" -m pytest -n auto "${tests[@]}"
}

if grep -qw avx512f /proc/cpuinfo; then
  check AVX2 -march=x86-64-v3
elif grep -qw avx2 /proc/cpuinfo; then
  echo "==> AVX2 is what 'make test' sees on this processor, which has no AVX-512"
else
  echo "==> not checked: this processor has no AVX2 to run it with"
fi
check SSE2 ""
