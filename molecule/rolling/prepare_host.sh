#!/bin/sh
# Inside a host: restarts Docker, whose default runtime is nvidia. With "broken", the unit of Docker fails if daemon.json does
# not name nvidia; only a restart shows this. With "refused", daemon.json is not valid JSON.
set -eu
unit=/etc/systemd/system/docker.service.d
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
