#!/bin/sh
# The module nvidia_runtime_restart, and the handlers of the role nvidia_runtime, for directory trees that pass for the file
# systems of running hosts.
set -eux

# The name of a socket cannot be as long as that of OUTPUT_DIR.
work=$(mktemp -d)
for tree in one two three four; do
    mkdir "$work/$tree"
    (
        cd "$work/$tree"
        mkdir -p etc/docker etc/containerd proc/4711 run/systemd/system tmp usr/bin usr/lib/systemd/system var/run
        mkdir -p var/lib/gpufleet-nvidia/state
        install -m 0755 /dev/null usr/bin/dockerd
        install -m 0755 /dev/null usr/bin/nvidia-container-runtime
        printf '[Service]\nExecStart=/usr/bin/dockerd\n' >usr/lib/systemd/system/docker.service
        echo dockerd >proc/4711/comm
        printf 4711 >var/run/docker.pid
        # bin/chroot and docker_api.py read and write these.
        echo '{}' >loaded.json
        echo ActiveState=active >state
        touch calls refused
    )
done
# A run was killed during a restart of this Docker, which does not start with a file in which CDI is on.
echo '[]' >"$work/one/var/lib/gpufleet-nvidia/state/restart-docker.json"
echo '"cdi": true' >"$work/one/refused"
rm "$work/three/usr/bin/nvidia-container-runtime"
install -m 0755 /dev/null "$work/four/usr/bin/containerd"
echo 'version = 2' >"$work/four/etc/containerd/config.toml"
# The module, as root, refuses to write into a directory of another user. An ordinary user cannot give a directory away,
# so that user makes it read-only. Either error comes only from the task that writes.
chown 1234 "$work/four/etc/containerd" || chmod a-w "$work/four/etc/containerd"
mkdir "$work/empty"
"$ANSIBLE_TEST_PYTHON_INTERPRETER" -B docker_api.py "$work/one" "$work/two" "$work/three" "$work/four" &
trap 'kill $! || :; chmod u+w "$work/four/etc/containerd"; rm -r "$work"' EXIT

# Handlers that fail end their play, so two of the three hosts fail.
export PATH="$PWD/bin:$PATH"
if ansible-playbook --inventory hosts.yml --extra-vars "work=$work" test.yml "$@" >"$work/output" 2>&1; then
    cat "$work/output"
    exit 1
fi
cat "$work/output"
grep -E '^testhost +: .* failed=0' "$work/output"
test "$(grep -cE '^(refusing|unverified) +: .* failed=1' "$work/output")" = 2
grep 'WARNING.*: docker still runs with its previous' "$work/output"
grep 'WARNING.*: No container engine was found' "$work/output"
# An error that is handled is printed by the last task alone.
if grep '^failed: ' "$work/output"; then exit 1; fi
grep 'The plays were run to their end' "$work/output"
grep '^fatal: \[refusing\].*/one docker.service: docker does not work with .*failed to start: CDI is not available' "$work/output"
grep '^fatal: \[unverified\].*/three docker.service: engine file: .*usr/bin/nvidia-container-runtime, which is not an executable file' \
    "$work/output"
