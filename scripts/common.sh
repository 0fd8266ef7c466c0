# The other scripts source this file, with the root of the repository as the working folder.
# shellcheck shell=bash

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

# Runs a command as root: directly, or by sudo, which may ask for a password only on a terminal.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        if [ -t 0 ]; then sudo "$@"; else sudo -n "$@"; fi
    else
        die "installing packages needs root: run this as root, or install sudo," \
            "or install them yourself: ${APT_WANTED:-}"
    fi
}

# Installs Debian packages without questions. Output is shown only when something fails.
apt_install() {
    APT_WANTED="$*"
    command -v apt-get >/dev/null || die "no apt-get here: install the equivalents of: $*"
    say "installing Debian packages: $*"
    local log
    log=$(mktemp)
    if ! { as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq update &&
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends \
            -o Dpkg::Use-Pty=0 install "$@"; } >"$log" 2>&1 </dev/null; then
        cat "$log" >&2
        rm -f "$log"
        die "apt-get could not install: $* (its messages are above)"
    fi
    rm -f "$log"
}

# Tells whether all the given commands exist. It searches system folders even if PATH lacks them.
have_commands() {
    local command
    for command in "$@"; do
        PATH="$PATH:/usr/sbin:/sbin" command -v "$command" >/dev/null || return 1
    done
}
