#!/bin/sh
# Inside a host: changes it as its owner or another tool might do (tamper.sh ACTION...), then observes it with observe.py.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
packages=/srv/packages
if grep -qx 'ID=debian' /etc/os-release; then kind=deb; else kind=rpm; fi
if grep -qx 'ID="opensuse-leap"' /etc/os-release; then sources=/etc/zypp/repos.d; else sources=/etc/yum.repos.d; fi
export DEBIAN_FRONTEND=noninteractive

add() { # add FILE...: with dpkg or rpm themselves
    if [ $kind = deb ]; then dpkg --install "$@"; else rpm --install "$@"; fi
}
drop() { # drop NAME
    if [ $kind = deb ]; then dpkg --purge "$1"; else rpm --erase "$1"; fi
}

register_legacy() { # with Docker, a runtime that needs the hook
    mkdir -p /etc/docker
    echo '{"runtimes": {"legacy": {"path": "/usr/bin/nvidia-container-runtime.legacy"}}}' >/etc/docker/daemon.json
    systemctl reload docker.service
    # The daemon reads its file some time after the signal.
    until docker info --format '{{json .Runtimes}}' | grep -q legacy; do sleep 0.1; done
}
unregister_legacy() {
    # Without this entry, the daemon keeps the runtimes that it has read.
    echo '{"runtimes": {}}' >/etc/docker/daemon.json
    systemctl reload docker.service
    while docker info --format '{{json .Runtimes}}' | grep -q legacy; do sleep 0.1; done
    rm /etc/docker/daemon.json
}

for action; do
    case $action in
        # Stop or start the server of the repository.
        stop | start) systemctl "$action" gpufleet-repository.service ;;
        # Upgrade all packages.
        upgrade)
            if [ $kind = deb ]; then
                apt-get update
                apt-get --yes upgrade
            elif [ $sources = /etc/zypp/repos.d ]; then
                zypper --non-interactive update
            else
                dnf --assumeyes --refresh upgrade
            fi
            ;;
        # Files of NVIDIA's previous instructions. apt refuses all commands if one address has two keys.
        former)
            if [ $kind = deb ]; then
                dpkg --install "$packages"/nvidia-docker2* "$packages"/nvidia-container-runtime_3*
            else
                # On real hosts these were installed first. Now rpm refuses them, because an installed package obsoletes them.
                rpm --install --nodeps "$packages"/nvidia-docker2* "$packages"/nvidia-container-runtime-3*
            fi
            if [ $kind = deb ]; then
                echo "deb [signed-by=/usr/share/keyrings/former.gpg] http://127.0.0.1:8088/stable/deb/$(dpkg --print-architecture) /" \
                    >/etc/apt/sources.list.d/nvidia-docker.list
            else
                printf '[%s]\nname=former\nbaseurl=https://%s/stable/rpm\n' nvidia-docker nvidia.github.io/nvidia-docker \
                    >$sources/nvidia-docker.repo
            fi
            ;;
        # A second signed source with a newer version, and with other contents of one version. Its file sorts first.
        second)
            address="http://127.0.0.1:8088/second/$kind"
            if [ $kind = deb ]; then
                cp /srv/repository/wrongkey /usr/share/keyrings/second.asc
                # shellcheck disable=SC2016 # apt replaces it
                printf 'Types: deb\nURIs: %s/$(ARCH)\nSuites: /\nSigned-By: /usr/share/keyrings/second.asc\n' "$address" \
                    >/etc/apt/sources.list.d/00-second.sources
            else
                rpm --import /srv/repository/wrongkey
                # shellcheck disable=SC2016 # dnf replaces it
                printf '[00-second]\nname=Second\nenabled=1\nbaseurl=%s/$basearch\ngpgcheck=1\nrepo_gpgcheck=1\ngpgkey=file://%s\n' \
                    "$address" /srv/repository/wrongkey >$sources/00-second.repo
            fi
            ;;
        no-second)
            rm -f /etc/apt/sources.list.d/00-second.sources /usr/share/keyrings/second.asc $sources/00-second.repo
            drop gpufleet-dependency
            ;;
        # Fetch the package lists of all sources.
        lists)
            if [ $kind = deb ]; then
                apt-get update
            elif [ $sources = /etc/zypp/repos.d ]; then
                zypper --non-interactive refresh
            else
                dnf --assumeyes makecache
            fi
            ;;
        # Forget that scripts of the second source have run.
        unmark) rm -f /run/gpufleet-other-source ;;
        # A container that gets its GPU from the legacy hook.
        gpu)
            register_legacy
            docker run --detach --network=none --runtime=legacy --stop-signal=KILL --name=gpu \
                --env=NVIDIA_VISIBLE_DEVICES=all gpufleet/busybox:1
            ;;
        no-gpu)
            docker rm --force gpu
            unregister_legacy
            ;;
        # A foreign package that needs the toolkit.
        bystander) add "$packages"/other/gpufleet-bystander* ;;
        no-bystander) drop gpufleet-bystander ;;
        # A container that runs with the runtime of the packages.
        run)
            : >/var/log/nvidia-container-runtime.calls
            docker run --rm --network=none --runtime=nvidia gpufleet/busybox:1 true
            grep -q '^/usr/bin/nvidia-container-runtime .* create ' /var/log/nvidia-container-runtime.calls
            ;;
    esac >&2
done
exec python3 -B "$here/observe.py"
