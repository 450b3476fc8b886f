#!/bin/sh
# Inside a host: does to Docker what its owner might do (tamper.sh ACTION), then looks, as ../shared/observe_docker.py does.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
file=/etc/docker/daemon.json
# The host's own file, from before all.
kept=/root/daemon.json
drop_in=/etc/systemd/system/docker.service.d

case $1 in
    # A starting point: bookworm has no file, trixie one with all sorts of settings, sid one with another default.
    begin)
        if [ "$2" != bookworm ]; then
            mkdir -p /etc/docker
            if [ "$2" = trixie ]; then mode=640; else mode=600; fi
            install -m "$mode" "$here/files/$2.json" "$file"
            # One of them as an editor on Windows leaves it.
            if [ "$2" = sid ]; then sed -i 's/$/\r/' "$file"; fi
            cp -p "$file" "$kept"
            systemctl restart docker.service
        fi
        /fx/load-busybox
        # Sleep ignores TERM, for which a stopping daemon would wait ten seconds.
        docker run --detach --network=none --runtime=runc --stop-signal=KILL --name=survivor gpufleet/busybox:1
        set -- --fresh
        ;;
    # The unit sets the default runtime; without a restart the file may still do so too.
    flag)
        mkdir "$drop_in"
        cat >"$drop_in/flags.conf" <<'END'
[Service]
ExecStart=
ExecStart=/usr/sbin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock --default-runtime=runc
END
        systemctl daemon-reload
        set --
        ;;
    unflag)
        rm -r "$drop_in"
        systemctl daemon-reload
        set --
        ;;
    # Only the service: its socket would start it.
    stop)
        systemctl stop docker.service
        set --
        ;;
    start)
        docker version >/dev/null
        set --
        ;;
esac
exec python3 "$here/../shared/observe_docker.py" "$@"
