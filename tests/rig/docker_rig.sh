#!/usr/bin/env bash
# A Docker engine with compose v2 on a bare Debian machine: no service, no registry, nothing of the machine's changed.
#   docker_rig.sh deps            install docker.io and debootstrap, unpack compose v2        (root; a quarter of a minute)
#   docker_rig.sh base            make a root file system with Python for python:3.11-slim    (a minute)
#   docker_rig.sh build DIR TAG [OPTION...]   build DIR's Dockerfile
#   docker_rig.sh up | down       start the engine that runs containers; stop it
#   docker_rig.sh clean           down, and remove everything
#   docker_rig.sh ready           say whether deps and base are done
# Everything is under $RIG. The engine that runs containers lives in a network namespace of its own ($RIG_NS) without a
# way out: what containers send cannot leave, and the machine's own interfaces and rules stay as they are. Clients of
# published ports: nsenter --net=/run/netns/$RIG_NS curl 127.0.0.1:... ; of the engine: DOCKER_HOST, DOCKER_CONFIG below.
set -euo pipefail

RIG=${RIG:-/tmp/minikafka-rig}
RIG_NS=${RIG_NS:-minikafka-rig}
export DOCKER_HOST=unix://$RIG/docker.sock DOCKER_CONFIG=$RIG/client
IN=(nsenter "--net=/run/netns/$RIG_NS")
BASE_IMAGE=python:3.11-slim
GATEWAY=172.30.255.1

mirror() { awk '/^URIs:/{print $2; exit}' /etc/apt/sources.list.d/debian.sources; }

deps() {
    export DEBIAN_FRONTEND=noninteractive
    mkdir -p "$DOCKER_CONFIG/cli-plugins" "$RIG"/apt/{lists,cache/archives}/partial
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends docker.io iptables iproute2 debootstrap >/dev/null
    # Debian 12 has no compose v2; the next release's is a Go program that runs here too. Its own lists, unpacked by hand.
    printf 'Types: deb\nURIs: %s\nSuites: trixie\nComponents: main\nSigned-By: %s\n' \
        "$(mirror)" /usr/share/keyrings/debian-archive-keyring.gpg >"$RIG/apt/trixie.sources"
    local options=(
        -o "Dir::Etc::sourcelist=$RIG/apt/trixie.sources" -o Dir::Etc::sourceparts=/dev/null
        -o "Dir::State::lists=$RIG/apt/lists" -o "Dir::Cache=$RIG/apt/cache" -o APT::Sandbox::User=root
    )
    apt-get "${options[@]}" update -qq
    (cd "$RIG/apt" && apt-get "${options[@]}" download -qq docker-compose/trixie && dpkg -x docker-compose_*.deb unpacked)
    cp "$RIG"/apt/unpacked/usr/libexec/docker/cli-plugins/docker-compose "$DOCKER_CONFIG/cli-plugins/"
    docker compose version
}

base() {
    local root=$RIG/root
    rm -rf "$root"
    debootstrap --variant=minbase --include=python3,python3-venv,python3-pip,ca-certificates \
        bookworm "$root" "$(mirror)" >"$RIG/debootstrap.log" 2>&1
    # As in the image that it stands for: `python`, and a pip that installs.
    rm -f "$root"/usr/lib/python3.11/EXTERNALLY-MANAGED
    ln -sf python3 "$root/usr/bin/python"
    # The machine's own trust store: pip in a build then reaches the package index just as pip on the machine does.
    cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
    printf '[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n' >"$root/etc/pip.conf"
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root/etc/resolv.conf"
    touch "$RIG/base.done"
}

ready() { [ -e "$RIG/base.done" ] && docker compose version >/dev/null 2>&1 && command -v dockerd >/dev/null; }

# engine PREFIX... -- ARGUMENTS...: start dockerd and wait until it answers.
engine() {
    local prefix=()
    while [ "$1" != -- ]; do prefix+=("$1"); shift; done
    shift
    echo '{}' >"$RIG/daemon.json"
    setsid "${prefix[@]}" dockerd --config-file "$RIG/daemon.json" --data-root "$RIG/data" --exec-root "$RIG/exec" \
        -H "$DOCKER_HOST" --pidfile "$RIG/docker.pid" --storage-driver overlay2 "$@" \
        >>"$RIG/dockerd.log" 2>&1 </dev/null &
    for _ in $(seq 300); do
        docker info >/dev/null 2>&1 && return
        sleep 0.1
    done
    tail -5 "$RIG/dockerd.log" >&2
    return 1
}

stop() {
    [ -e "$RIG/docker.pid" ] || return 0
    docker ps -aq | xargs -r docker rm -f >/dev/null
    kill "$(cat "$RIG/docker.pid")"
    for _ in $(seq 300); do
        [ -e "$RIG/docker.pid" ] || return 0
        sleep 0.1
    done
    return 1
}

# In the machine's own network, for pip, but with no bridge and no rules.
build() {
    engine env -- --bridge=none --iptables=false --ip6tables=false --ip-forward=false
    trap stop EXIT
    docker image inspect "$BASE_IMAGE" >/dev/null 2>&1 ||
        tar -C "$RIG/root" -c . | docker import -c 'CMD ["python3"]' \
            -c 'ENV LANG=C.UTF-8 PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin' - "$BASE_IMAGE" >/dev/null
    docker build --network=host -t "$2" "${@:3}" "$1"
}

up() {
    ip netns add "$RIG_NS"
    "${IN[@]}" ip link set lo up
    engine "${IN[@]}" -- --bip "$GATEWAY/24" --default-address-pool base=172.30.0.0/16,size=24 --dns "$GATEWAY"
    # The engine asks an upstream for the names of containers that are down; with none, each look-up takes 10 seconds.
    # This one says at once that there is no such name.
    setsid "${IN[@]}" python3 -c "
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(('$GATEWAY', 53))
while True:
    query, client = server.recvfrom(4096)
    if len(query) < 17:
        continue
    end = 12
    while end < len(query) and query[end]:
        end += query[end] + 1
    server.sendto(query[:2] + bytes([0x81, 0x83]) + query[4:6] + bytes(6) + query[12:end + 5], client)
" </dev/null >"$RIG/dns.log" 2>&1 &
    echo $! >"$RIG/dns.pid"
}

down() {
    stop || true
    [ ! -e "$RIG/dns.pid" ] || kill "$(cat "$RIG/dns.pid")" 2>/dev/null || true
    rm -f "$RIG/dns.pid"
    ip netns del "$RIG_NS" 2>/dev/null || true
    # The engine leaves the mount of a namespace behind.
    umount "$RIG"/exec/netns/* 2>/dev/null || true
}

clean() {
    down
    rm -rf --one-file-system "$RIG"
}

case ${1:-} in
    deps | base | ready | build | up | down | clean) "$@" ;;
    *) sed -n '2,9s/^# //p' "$0" >&2; exit 2 ;;
esac
