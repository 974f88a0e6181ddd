#!/usr/bin/env bash
# The tests of the Python package in an environment that holds the wheel and torch (CPU), made once in build/venv-torch.
# --slice: the few that are part of ./run test, without other people's loops. Ends with 69 if there is no CPU build of torch to be
# had. All other arguments go to pytest.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
VENV=build/venv-torch
PACKAGES=(torch==2.13.0+cpu numpy==2.2.6 pytest==8.3.5 safetensors==0.5.3 scikit-build-core==0.11.6 nanobind==2.9.2 mypy==1.18.2)

install() { "$VENV/bin/pip" install -q --disable-pip-version-check "$@"; }

choice=()
if [ "${1:-}" = --slice ]; then
  shift
  choice=(-m slice)
fi

stamp="$VENV/.have-$(printf '%s\n' "${PACKAGES[@]}" | md5sum | cut -c1-12)"
if [ ! -e "$stamp" ]; then
  printf 'making %s (%s)\n' "$VENV" "${PACKAGES[*]}"
  rm -rf "$VENV"
  python3 -m venv "$VENV"
  if ! install "${PACKAGES[@]}"; then
    printf 'pip finds no CPU build of torch: name an index that has one in PIP_EXTRA_INDEX_URL\n' >&2
    exit 69
  fi
  touch "$stamp"
fi

# What the tests of other people's loops need on top.
FRAMEWORKS=(transformers==5.24.0 accelerate==1.15.0 torchdata==0.11.0 lightning==2.6.6)
more="$VENV/.have-$(printf '%s\n' "${FRAMEWORKS[@]}" | md5sum | cut -c1-12)"
if [ ${#choice[@]} = 0 ] && [ ! -e "$more" ]; then
  install "${FRAMEWORKS[@]}"
  touch "$more"
fi

# Installed again when a source of the wheel is newer than the last one.
wheel="$VENV/.wheel"
if [ ! -e "$wheel" ] || [ -n "$(find libckpt cmake integrations/torch pyproject.toml CMakeLists.txt -newer "$wheel" -type f -print -quit)" ]; then
  touch "$wheel.begun"
  PATH="$PWD/$VENV/bin:$PATH" CCACHE_NOHASHDIR=1 install --no-build-isolation --no-deps --force-reinstall .
  mv "$wheel.begun" "$wheel"
fi
exec "$VENV/bin/python" -m pytest -q tests/torch -p no:cacheprovider "${choice[@]}" "$@"
