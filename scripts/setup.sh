#!/usr/bin/env bash
# Installs what a job needs and this machine lacks; does nothing when all is there.
#   scripts/setup.sh demo|test|bench
# Needs Rust; everything else comes from Debian's or Ubuntu's packages, from crates.io, and for the tests of the network from
# PyPI and npm.
set -euo pipefail
cd "$(dirname "$0")/.."

job=${1:?usage: scripts/setup.sh demo|test|bench}
missing=()
as_root=()

die() {
    printf 'setup: %s\n' "$1" >&2
    exit 1
}

# want PACKAGE COMMAND…: the package is wanted when the command fails.
want() {
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || missing+=("$package")
}

has() { command -v "$1"; }

# A compiler alone is not enough: the static C library has to be there too.
links_static() {
    local scratch status=0
    scratch=$(mktemp -d)
    printf 'int main(void){return 0;}' >"$scratch/main.c"
    cc -static -o "$scratch/main" "$scratch/main.c" || status=1
    rm -rf "$scratch"
    return "$status"
}

list_missing_packages() {
    want build-essential links_static
    want python3 test -x /usr/bin/python3
    # The dashboard is part of the binary.
    want nodejs has node
    want npm has npm
    [[ $job == demo ]] && return
    # python3 without ensurepip is how Debian ships it: `python3 -m venv` then fails.
    want python3-venv /usr/bin/python3 -c 'import ensurepip'
    want git has git
    # The agent's and the operator's sockets are tried with the program that people try first.
    want curl has curl
    # Whom Java trusts in a box is asked of Java.
    want default-jre-headless has keytool
    [[ $job == test ]] && list_missing_clients
    [[ $job == test ]] && want_browser
    if [[ $job == test && $(uname -m) == x86_64 ]]; then
        want qemu-system-x86 has qemu-system-x86_64
        want xz-utils has xz
    fi
    [[ $job == bench ]] && want bubblewrap has bwrap
    return 0
}

# A kernel for guests, unpacked and never installed as the host's own: by the newest image that the distribution has.
install_guest_kernel() {
    local place=/usr/lib/belljar/guest kernel package scratch
    [[ -d $place/boot ]] && return
    has apt-get >/dev/null || die "please unpack a kernel for guests into $place (this script knows only apt)"
    ((EUID == 0)) || as_root=(sudo -n)
    echo "setup: unpacking a kernel for guests into $place"
    "${as_root[@]}" apt-get update -qq
    scratch=$(mktemp -d)
    chmod 755 "$scratch"
    for kernel in linux-image-cloud-amd64 linux-image-virtual; do
        apt-cache show "$kernel" >/dev/null 2>&1 && break
    done
    for package in $(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
        --no-enhances "$kernel" | grep -E '^linux-(image|modules)-[0-9]' | sort -u); do
        (cd "$scratch" && apt-get download -qq "$package" 2>/dev/null) || die "can't fetch $package"
    done
    for package in "$scratch"/*.deb; do dpkg-deb -x "$package" "$scratch/tree"; done
    "${as_root[@]}" mkdir -p "$place.new/lib"
    "${as_root[@]}" cp -r "$scratch/tree/boot" "$place.new/boot"
    "${as_root[@]}" cp -r "$scratch"/tree/{lib,usr/lib}/modules "$place.new/lib/" 2>/dev/null || true
    "${as_root[@]}" mv "$place.new" "$place"
    rm -rf "$scratch"
}

# A later release of gVisor's than Debian 12 has, with another platform, for tests with both: from its backports, unpacked and
# never installed. apt reads these for this one package alone, in directories of its own.
install_later_runsc() {
    local version='0.0~20240729.0-4~bpo12*' place=/usr/lib/belljar/runsc-20240729 scratch mirror apt
    [[ -x $place/runsc ]] && return
    has apt-get >/dev/null || die "please unpack runsc 20240729 into $place (this script knows only apt)"
    ((EUID == 0)) || as_root=(sudo -n)
    echo "setup: unpacking runsc 20240729 into $place"
    "${as_root[@]}" apt-get update -qq
    mirror=$(apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
        sed -n 's/^\(bookworm\|trixie\) main //p' | head -1)
    [[ -n $mirror ]] || die "please unpack runsc 20240729 into $place (no mirror of Debian's is configured)"
    scratch=$(mktemp -d)
    chmod 755 "$scratch"
    mkdir -p "$scratch"/{lists,cache}/partial
    printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s bookworm-backports main\n' \
        "$mirror" >"$scratch/sources.list"
    apt=(-qq -o Dir::Etc::SourceList="$scratch/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o Dir::State::Lists="$scratch/lists" -o Dir::Cache="$scratch/cache" -o APT::Sandbox::User=root)
    (cd "$scratch" && apt-get "${apt[@]}" update && apt-get "${apt[@]}" download "runsc=$version") ||
        die "can't fetch runsc $version of bookworm-backports"
    dpkg-deb -x "$scratch"/runsc_*.deb "$scratch/tree"
    "${as_root[@]}" install -D --mode 755 "$scratch/tree/usr/bin/runsc" "$place/runsc"
    rm -rf "$scratch"
}

has_postgres() { compgen -G '/usr/lib/postgresql/*/bin/initdb'; }

# What tests of the network are made of: programs to drive from inside boxes, and servers for them to reach.
list_missing_clients() {
    want iproute2 has ip
    # Login shells, whose start-up files a box is shown without keys.
    want zsh has zsh
    want fish has fish
    want util-linux has unshare
    want zstd has zstd
    want openssl has openssl
    want openssh-client has ssh-keygen
    # The tier of that name, for the tests of walls and limits.
    want runsc has runsc
    # By its key a later release of it is checked, on Ubuntu too.
    want debian-archive-keyring test -e /usr/share/keyrings/debian-archive-keyring.gpg
    # Images are taken from an engine that a test starts, and made of the distribution's packages.
    want docker.io test -x /usr/sbin/dockerd
    # Newer releases have the engine's own client in a package by itself.
    apt-cache show docker-cli >/dev/null 2>&1 && want docker-cli test -x /usr/bin/docker
    want podman has podman
    want mmdebstrap has mmdebstrap
    want openssh-server test -x /usr/sbin/sshd
    want postgresql has_postgres
    want postgresql-client has psql
}

# Ubuntu's package of this name is a snap, which does not run everywhere; another browser of the family serves as well.
want_browser() {
    has google-chrome >/dev/null || want chromium has chromium
}

# The servers among the packages are started by the tests alone, in networks of their own.
without_starting_services() {
    local policy=/usr/sbin/policy-rc.d status=0
    [[ -e $policy ]] && { "$@"; return; }
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
    "${as_root[@]}" chmod 755 "$policy"
    "$@" || status=$?
    "${as_root[@]}" rm -f "$policy"
    return "$status"
}

install_missing_packages() {
    ((${#missing[@]})) || return 0
    has apt-get >/dev/null || die "please install: ${missing[*]} (this script knows only apt)"
    if ((EUID != 0)); then
        sudo -n true 2>/dev/null ||
            die "please run once as root: apt-get install --no-install-recommends ${missing[*]}"
        as_root=(sudo -n)
    fi
    echo "setup: installing ${missing[*]}"
    "${as_root[@]}" apt-get update -qq
    without_starting_services "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# Older ones can't run the tools of the dashboard.
check_node() {
    local wanted found
    wanted=$(sed -n 's/.*"node": ">=\(.*\)".*/\1/p' dashboard/package.json)
    found=$(node --version | tr -d v)
    [[ $(printf '%s\n' "$wanted" "$found" | sort -V | head -1) == "$wanted" ]] ||
        die "Node $wanted or newer is needed, this is $found: see https://nodejs.org/en/download"
}

check_rust() {
    has cargo >/dev/null || die "Rust is missing: install it with rustup (https://rustup.rs)"
    local wanted found
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    found=$(cargo --version | cut -d' ' -f2)
    [[ $(printf '%s\n' "$wanted" "$found" | sort -V | head -1) == "$wanted" ]] ||
        die "Rust $wanted or newer is needed, this is $found: rustup update stable"
}

install_rust_tools() {
    local component
    for component in rustfmt clippy; do
        cargo "${component/rustfmt/fmt}" --version >/dev/null 2>&1 || rustup component add "$component"
    done
    if ! has cargo-nextest >/dev/null; then
        echo "setup: compiling cargo-nextest once, which takes a few minutes"
        # Unoptimised: the wait for its compilation is longer than all it could save.
        cargo install cargo-nextest --quiet --locked --debug --config profile.dev.debug=0
    fi
}

# A vsock device that leads to Unix sockets, as Firecracker's does, for what stands in for Firecracker in tests.
install_vsock_device() {
    local version=0.3.0 place=${CARGO_TARGET_DIR:-target}/test-tools
    [[ -f $place/.crates.toml && $(<"$place/.crates.toml") == *"vhost-device-vsock $version "* ]] && return
    echo "setup: compiling vhost-device-vsock $version into $place"
    cargo install vhost-device-vsock --version "$version" --quiet --locked --debug --config profile.dev.debug=0 --root "$place"
}

# What the egress engine and the MCP gateway are measured against, each in an environment of its own.
#   in_venv NAME PROGRAM PACKAGE VERSION
in_venv() {
    local venv=${CARGO_TARGET_DIR:-target}/$1 program=$2 package=$3 version=$4
    [[ -x $venv/bin/$program && $("$venv/bin/pip" show "$package" 2>/dev/null) == *"Version: $version"* ]] && return
    echo "setup: installing $package $version into $venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check "$package==$version"
}

list_missing_packages
install_missing_packages
check_rust
check_node
if [[ $job == test ]]; then
    install_rust_tools
    if [[ $(uname -m) == x86_64 ]]; then
        install_guest_kernel
        install_vsock_device
    fi
    install_later_runsc
    scripts/clients.sh
fi
if [[ $job == bench ]]; then
    in_venv bench-venv mitmdump mitmproxy 11.0.2
    in_venv bench-mcp-venv mcp-proxy mcp-proxy 0.13.0
fi
