# Sourced after common.sh. Finds `cargo` of the pinned version on the machine, or installs it by
# rustup. Exports PATH accordingly.
# shellcheck shell=bash

PINNED=$(sed -n 's/^channel *= *"\(.*\)"/\1/p' rust-toolchain.toml)
CARGO_BIN=${CARGO_HOME:-${HOME:-/root}/.cargo}/bin
RUSTUP_URL=https://sh.rustup.rs

# Whether the cargo and rustc first on PATH are the pinned ones, with rustfmt and clippy.
# RUSTUP_AUTO_INSTALL=0 keeps rustup from a download as a side effect.
toolchain_usable() {
    local version
    version=$(RUSTUP_AUTO_INSTALL=0 rustc --version 2>/dev/null) || return 1
    [[ $version == "rustc $PINNED "* ]] &&
        RUSTUP_AUTO_INSTALL=0 cargo --version >/dev/null 2>&1 &&
        RUSTUP_AUTO_INSTALL=0 cargo fmt --version >/dev/null 2>&1 &&
        RUSTUP_AUTO_INSTALL=0 cargo clippy --version >/dev/null 2>&1
}

# Tries PATH as it is, then the usual places of cargo, then rustup's folders of toolchains.
find_toolchain() {
    local folder old_path=$PATH
    toolchain_usable && return 0
    for folder in "$CARGO_BIN" /usr/local/cargo/bin \
        "${RUSTUP_HOME:-${HOME:-/root}/.rustup}/toolchains/$PINNED"-*/bin \
        "/usr/local/rustup/toolchains/$PINNED"-*/bin; do
        [ -x "$folder/cargo" ] || continue
        PATH=$folder:$old_path
        toolchain_usable && return 0
    done
    PATH=$old_path
    return 1
}

install_rustup() {
    command -v curl >/dev/null || apt_install curl ca-certificates
    say "installing Rust $PINNED by rustup"
    local installer
    installer=$(mktemp)
    curl --proto '=https' --tlsv1.2 -fsS --retry 2 --connect-timeout 20 \
        "$RUSTUP_URL" -o "$installer" ||
        die "cannot download rustup from $RUSTUP_URL: install Rust $PINNED with rustfmt" \
            "and clippy in another way, then run make again"
    sh "$installer" -q -y --no-modify-path --profile minimal --default-toolchain none </dev/null ||
        die "the installer from $RUSTUP_URL failed (its messages are above)"
    rm -f "$installer"
    PATH=$CARGO_BIN:$PATH
}

install_toolchain() {
    command -v rustup >/dev/null || [ ! -x "$CARGO_BIN/rustup" ] || PATH=$CARGO_BIN:$PATH
    command -v rustup >/dev/null || install_rustup
    # RUSTUP_TOOLCHAIN would hide the toolchain that the repository pins.
    unset RUSTUP_TOOLCHAIN
    rustup --quiet toolchain install "$PINNED" --profile minimal -c rustfmt -c clippy \
        --no-self-update </dev/null ||
        die "rustup could not install Rust $PINNED: see its message above," \
            "or install that version in another way"
    toolchain_usable ||
        die "rustup has installed Rust $PINNED but it does not run:" \
            "try 'rustc --version' in this folder"
}

find_toolchain || install_toolchain
export PATH
