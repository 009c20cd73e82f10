#!/usr/bin/env bash
# quickstart.sh -- from a fresh clone to a trained demo: packages, build, training. Arguments go to ./train.
set -eu
cd "$(dirname "$0")/.."
scripts/setup.sh --run
make -j "$(nproc)" </dev/null
exec ./train configs/demo.json "$@"
