#!/usr/bin/env bash
# Holds the dependencies to deny.toml: known vulnerabilities, licences, sources. The first of these takes the list of
# <https://rustsec.org> from the network; where there is none, that part is skipped and said.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh

if ! cargo deny --version >/dev/null 2>&1; then
    missing="cargo-deny is not there: cargo install --locked cargo-deny"
    [ "${DRYSTONE_SKIP_MISSING:-}" = 1 ] || die "$missing"
    say "SKIPPED: $missing"
    exit 0
fi
cargo deny --locked check licenses bans sources
if cargo deny fetch db >/dev/null 2>&1; then
    cargo deny --locked check --disable-fetch advisories
else
    [ "${DRYSTONE_SKIP_MISSING:-}" = 1 ] || die "the list of known vulnerabilities could not be fetched"
    say "SKIPPED: known vulnerabilities: their list could not be fetched"
fi
