#!/bin/sh
# Inside a host: configures Docker with nvidia as its default runtime, as nvidia-ctk does. With "broken", the unit of Docker
# fails if daemon.json does not name nvidia; only a restart shows this. With "refused", daemon.json is not valid JSON.
set -eu
unit=/etc/systemd/system/docker.service.d
/fx/install-toolkit
mkdir -p /etc/docker
cat >/etc/docker/daemon.json <<'END'
{
    "default-runtime": "nvidia",
    "runtimes": {
        "nvidia": {
            "args": [],
            "path": "/usr/bin/nvidia-container-runtime"
        }
    }
}
END
if [ "$1" = broken ]; then
    mkdir "$unit"
    cat >"$unit/needs-nvidia.conf" <<'END'
[Service]
ExecStartPre=/bin/sh -c 'grep -q nvidia /etc/docker/daemon.json || { echo no GPU, no Docker; exit 1; }'
END
    systemctl daemon-reload
fi
systemctl restart docker.service
if [ "$1" = refused ]; then echo '}' >>/etc/docker/daemon.json; fi
exec python3 "$(dirname "$0")/../shared/observe_docker.py" --fresh
