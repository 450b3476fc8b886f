#!/bin/sh
# Inside a host: changes Docker as its owner might do (tamper.sh ACTION), then observes it with ../shared/observe_docker.py.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
file=/etc/docker/daemon.json
# A copy of the host's file from before the first change.
kept=/root/daemon.json
drop_in=/etc/systemd/system/docker.service.d

case $1 in
    # The first state: bookworm has no file, trixie one with many settings, sid one with another default.
    prepare)
        if [ "$2" != bookworm ]; then
            mkdir -p /etc/docker
            if [ "$2" = trixie ]; then mode=640; else mode=600; fi
            install -m "$mode" "$here/files/$2.json" "$file"
            # Make the lines of one file end as an editor on Windows does.
            if [ "$2" = sid ]; then sed -i 's/$/\r/' "$file"; fi
            cp -p "$file" "$kept"
            systemctl restart docker.service
        fi
        /fx/load-busybox
        # sleep ignores SIGTERM, and a daemon that stops waits ten seconds for it.
        docker run --detach --network=none --runtime=runc --stop-signal=KILL --name=survivor gpufleet/busybox:1
        set -- --fresh
        ;;
    # The unit sets the default runtime. Until the next restart, the file may also set it.
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
    # The clock was set back after the files were written, among them the list of installed packages.
    future)
        echo '{"packages": []}' >/var/lib/gpufleet-nvidia/state/installed-packages.json
        touch -d '+1 day' "$file" /var/lib/gpufleet-nvidia/state/installed-packages.json
        set --
        ;;
    present)
        rm /var/lib/gpufleet-nvidia/state/installed-packages.json
        set --
        ;;
    # Only the service is stopped. A request to its socket would start it.
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
