#!/usr/bin/env bash
# Finds misspelt words; typos.toml lists exceptions. The tool comes from PyPI, into a
# folder of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh
VERSION=1.52.0
folder="${CARGO_TARGET_DIR:-$PWD/target}/typos-$VERSION"
python3 -m pip --version >/dev/null 2>&1 || apt_install python3-pip
if ! [ -x "$folder/bin/typos" ]; then
    if ! python3 -m pip install --quiet --disable-pip-version-check --target "$folder" \
        "typos==$VERSION" >/dev/null 2>&1; then
        missing="typos $VERSION could not be installed by pip"
        [ "${DRYSTONE_SKIP_MISSING:-}" = 1 ] || die "$missing"
        say "SKIPPED: $missing"
        exit 0
    fi
fi
"$folder/bin/typos" --config typos.toml
