#!/usr/bin/env bash
# Checks the dependencies by deny.toml: known vulnerabilities, licences, sources. The first check
# needs the list of <https://rustsec.org> from the network. Without a network it fails, or prints
# SKIPPED if DRYSTONE_SKIP_MISSING=1 is set.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh

if ! cargo deny --version >/dev/null 2>&1; then
    missing="cargo-deny is missing: cargo install --locked cargo-deny"
    [ "${DRYSTONE_SKIP_MISSING:-}" = 1 ] || die "$missing"
    say "SKIPPED: $missing"
    exit 0
fi
cargo deny --locked check licenses bans sources
if cargo deny fetch db >/dev/null 2>&1; then
    cargo deny --locked check --disable-fetch advisories
else
    missing="the list of known vulnerabilities could not be fetched"
    [ "${DRYSTONE_SKIP_MISSING:-}" = 1 ] || die "$missing"
    say "SKIPPED: $missing"
fi
