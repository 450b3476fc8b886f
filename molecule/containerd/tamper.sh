#!/bin/sh
# Inside a host: changes containerd as its owner might do (tamper.sh ACTION), then observes it.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=/etc/containerd
file=$folder/config.toml
drop_in=$folder/conf.d/99-nvidia.toml
# A copy of the host's files from before the first change.
kept=/root/containerd

# Another pause image, as for a new Kubernetes. The files of the two releases with this action contain the header.
edit() {
    sed -e '/^ *sandbox_image/d' \
        -e '/^ *\[plugins."io.containerd.grpc.v1.cri"\]$/a\      sandbox_image = "registry.example/pause:edited"' "$1"
}

addition() { printf '# The owner'"'"'s\n[plugins."io.containerd.cri.v1.runtime"]\nmax_container_log_line_size = 131072\n'; }

observe() { exec python3 "$here/../shared/observe_containerd.py" "$@"; }

case $1 in
    # The first state: bookworm has Debian's own file, trixie one for Kubernetes with a secret, sid one in version 3, which
    # imports a directory with a foreign file.
    prepare)
        cp $file /root/containerd-as-packaged.toml
        case $2 in
            trixie) install -m 640 "$here/files/kubeadm.toml" "$file" ;;
            sid) cp -R "$here/files/imports-3/." "$folder" ;;
        esac
        cp -a "$folder" "$kept"
        systemctl restart containerd.service
        # The pod and the container must keep running.
        python3 "$here/start.py"
        python3 /fx/cri.py start runc
        /fx/load-busybox
        docker run --detach --network=none --runtime=runc --stop-signal=KILL --name=survivor gpufleet/busybox:1
        python3 "$here/../shared/observe_docker.py" --fresh >/dev/null
        observe --fresh
        ;;
    # The clock was set back after the files were written.
    future) find $folder -type f -exec touch -d '+1 day' {} + ;;
    # Nothing is recorded about the process.
    forget) rm /var/lib/gpufleet-nvidia/state/applied-containerd.json ;;
    # The owner's edit: in the main file, or in the drop-in of this collection if it does not change the main file.
    edit)
        if grep -q '^version = 3' "$file"; then
            addition >>$drop_in
        else
            edit "$file" >/root/edited
            cat /root/edited >"$file"
        fi
        ;;
    # Check that the edit is the only difference from the host's own files.
    compare)
        if grep -q '^version = 3' "$file"; then
            # The first lines of the drop-in, its header and version, stay with the owner's settings.
            tail -n +5 $drop_in >/root/edited
            addition | diff - /root/edited
        else
            edit "$kept/config.toml" | diff - "$file"
        fi
        ;;
    restore)
        rm -r "$folder"
        cp -a "$kept" "$folder"
        systemctl restart containerd.service
        ;;
esac
observe
