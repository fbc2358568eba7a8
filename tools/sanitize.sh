#!/usr/bin/env bash
# Runs the kernels' tests over the CPU kernels, and the CUDA kernels for the host, built with AddressSanitizer and
# UndefinedBehaviorSanitizer, which stop at the first access outside of an array, use of freed memory, overflow of a
# signed integer and the like. Needs g++.
#
# Usage, from the repository's root: tools/sanitize.sh [python] [words for pytest]
# The library lies in build/sanitize, apart from that of the environment.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-.venv/bin/python}
shift || true
site=$PWD/build/sanitize
# vptr: it needs the types of torch's classes, which the library does not see.
flags="-O1 -g -fsanitize=address,undefined -fno-sanitize=vptr"
# Not CamVid, which is large, nor torch.compile, whose own compiler can't load a sanitizer late.
tests=(tests/kernels tests/loss/test_numerics.py tests/loss/test_properties.py tests/loss/test_gradients.py
  -k "not camvid and not compile and not one_graph")
[ $# -eq 0 ] || tests=("$@")

# Under the runtimes below compilers would be checked too, so all is built before.
echo "==> building the CPU kernels with AddressSanitizer and UndefinedBehaviorSanitizer into build/sanitize"
EDGELOSS_BUILD=cpu CXX=g++ CXXFLAGS="$flags" LDFLAGS="$flags" "$python" -m pip install --quiet --no-deps --upgrade \
  --target "$site" . &
echo "==> and the CUDA kernels for the host into build/host_shim"
export CXX="g++ $flags"
PYTHONPATH=tests "$python" -c "import host_shim; host_shim.build(host_shim.compiler())"
wait $!

# The sanitizers' runtimes have to come first in the process, and Python is not linked to them. libstdc++ beside them,
# for their interceptors of exceptions.
preload=$(for name in libasan libubsan libstdc++; do g++ -print-file-name=$name.so; done | paste -sd' ')
unset CI  # the sanitizers take their time: without the slow tests, and with fewer examples of each property
export PYTHONPATH=$site PYTHONSAFEPATH=1 OMP_NUM_THREADS=1  # the working directory holds edgeloss too
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1  # Python itself leaks at its end

run() { LD_PRELOAD=$preload "$python" "$@"; }
run -c "
import edgeloss, sys
sys.exit(edgeloss.__file__ != '$site/edgeloss/__init__.py' or edgeloss.backends()['cpu'] != 'available')
" || { echo "tools/sanitize.sh: the library under build/sanitize does not load"; exit 1; }
echo "==> testing them"
# By file descriptors pytest would capture, and lose, what a process reports as it dies.
run -m pytest --capture=sys -n auto "${tests[@]}"
