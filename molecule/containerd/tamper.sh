#!/bin/sh
# Inside a host: does to containerd what its owner might do (tamper.sh ACTION), then looks.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=/etc/containerd
file=$folder/config.toml
drop_in=$folder/conf.d/99-nvidia.toml
# The host's own files, from before all.
kept=/root/containerd

# Another pause image, as for a new Kubernetes; the header is in the files of both suites that this is for.
edit() {
    sed -e '/^ *sandbox_image/d' \
        -e '/^ *\[plugins."io.containerd.grpc.v1.cri"\]$/a\      sandbox_image = "registry.example/pause:edited"' "$1"
}

addition() { printf '# The owner'"'"'s\n[plugins."io.containerd.cri.v1.runtime"]\nmax_container_log_line_size = 131072\n'; }

look() { exec python3 "$here/../shared/observe_containerd.py" "$@"; }

case $1 in
    # A starting point: bookworm has Debian's own file, in which a runtime beside the built-in one is a trap; trixie one
    # for Kubernetes, with a secret; sid one in version 3, which imports a directory with a foreign file.
    begin)
        cp $file /root/containerd-as-packaged.toml
        case $2 in
            trixie) install -m 640 "$here/files/kubeadm.toml" "$file" ;;
            sid) cp -R "$here/files/imports-3/." "$folder" ;;
        esac
        cp -a "$folder" "$kept"
        systemctl restart containerd.service
        # Both are to survive whatever follows.
        python3 "$here/start.py"
        python3 /fx/cri.py start runc
        /fx/load-busybox
        docker run --detach --network=none --runtime=runc --stop-signal=KILL --name=survivor gpufleet/busybox:1
        python3 "$here/../shared/observe_docker.py" --fresh >/dev/null
        look --fresh
        ;;
    # The owner's edit: in the main file; where that is none of our business, in our drop-in.
    edit)
        if grep -q '^version = 3' "$file"; then
            addition >>$drop_in
        else
            edit "$file" >/root/edited
            cat /root/edited >"$file"
        fi
        ;;
    # Whether the edit is all that distinguishes the files from the host's own.
    compare)
        if grep -q '^version = 3' "$file"; then
            # The version stays with what is written in it, and with that the head of the file.
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
look
