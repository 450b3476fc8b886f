#!/bin/sh
# Inside a host: does to it what its owner, or somebody else, might do (tamper.sh ACTION...), then looks, as observe.py says.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
packages=/srv/packages
if grep -qx 'ID=debian' /etc/os-release; then kind=deb; else kind=rpm; fi
export DEBIAN_FRONTEND=noninteractive

add() { # add FILE...: with dpkg or rpm themselves
    if [ $kind = deb ]; then dpkg --install "$@"; else rpm --install "$@"; fi
}
drop() { # drop NAME
    if [ $kind = deb ]; then dpkg --purge "$1"; else rpm --erase "$1"; fi
}

for action; do
    case $action in
        # The mirror cannot be reached; it can again.
        stop | start) systemctl "$action" gpufleet-repository.service ;;
        # All that can be upgraded is.
        upgrade)
            if [ $kind = deb ]; then
                apt-get update
                apt-get --yes upgrade
            else
                dnf --assumeyes --refresh upgrade
            fi
            ;;
        # What instructions of former years left behind; apt refuses any command with two keys for one address.
        former)
            if [ $kind = deb ]; then
                dpkg --install "$packages"/nvidia-docker2* "$packages"/nvidia-container-runtime_3*
            else
                # They were there first; rpm refuses what an installed package obsoletes.
                rpm --install --nodeps "$packages"/nvidia-docker2* "$packages"/nvidia-container-runtime-3*
            fi
            if [ $kind = deb ]; then
                echo "deb [signed-by=/usr/share/keyrings/former.gpg] http://127.0.0.1:8088/stable/deb/$(dpkg --print-architecture) /" \
                    >/etc/apt/sources.list.d/nvidia-docker.list
            else
                printf '[%s]\nname=former\nbaseurl=https://%s/stable/rpm\n' nvidia-docker nvidia.github.io/nvidia-docker \
                    >/etc/yum.repos.d/nvidia-docker.repo
            fi
            ;;
        # A container that has its GPU by the hook.
        gpu)
            mkdir -p /etc/docker
            echo '{"runtimes": {"legacy": {"path": "/usr/bin/nvidia-container-runtime.legacy"}}}' >/etc/docker/daemon.json
            systemctl reload docker.service
            # The daemon reads its file after the signal for it has returned.
            until docker info --format '{{json .Runtimes}}' | grep -q legacy; do sleep 0.1; done
            docker run --detach --network=none --runtime=legacy --stop-signal=KILL --name=gpu \
                --env=NVIDIA_VISIBLE_DEVICES=all gpufleet/busybox:1
            ;;
        no-gpu)
            docker rm --force gpu
            rm /etc/docker/daemon.json
            systemctl reload docker.service
            ;;
        # Somebody else's package that needs the toolkit.
        bystander) add "$packages"/other/gpufleet-bystander* ;;
        no-bystander) drop gpufleet-bystander ;;
        # A container through the runtime that the packages brought.
        run)
            : >/var/log/nvidia-container-runtime.calls
            docker run --rm --network=none --runtime=nvidia gpufleet/busybox:1 true
            grep -q '^/usr/bin/nvidia-container-runtime .* create ' /var/log/nvidia-container-runtime.calls
            ;;
    esac >&2
done
exec python3 -B "$here/observe.py"
