#!/bin/sh
# The playbooks site, rolling and remove for hosts of different kinds; see fleet.py.
set -eux

work=$OUTPUT_DIR
python=$ANSIBLE_TEST_PYTHON_INTERPRETER
run() { ansible-playbook --inventory "$work/hosts.json" "$@"; }
# Paths, modes and contents of all but what a host forgets when it is switched off.
contents() {
    (cd "$work/trees" && find . -path './*/run' -prune -o -printf '%p %M %l\n' | sort
        find . -path './*/run' -prune -o -type f -exec sha256sum '{}' + | sort)
}
# Two outputs of ansible-playbook have the same changed tasks. The first one may be of check mode.
same_changes() {
    for output in "$@"; do "$python" -B fleet.py changes "$output" >"$output.changes"; done
    test -s "$1.changes"
    diff "$1.changes" "$2.changes"
}
# Which file each path is, and when it was written.
files() { (cd "$work/trees" && find . -path './*/run' -prune -o -type f -printf '%p %i %T@\n' | sort); }

"$python" -B fleet.py make "$work"
contents >"$work/before"

# Hosts that are not named stay as they are.
if run gpufleet.nvidia.remove "$@" >"$work/output" 2>&1; then exit 1; fi
grep 'No hosts are named, so nothing was removed' "$work/output"
contents | diff "$work/before" -

# Check mode writes nothing.
if run gpufleet.nvidia.site --check "$@" >"$work/check" 2>&1; then exit 1; fi
contents | diff "$work/before" -

# The host "refused" fails, and no other one.
if run gpufleet.nvidia.site "$@" >"$work/output" 2>&1; then exit 1; fi
cat "$work/output"
# It predicts the tasks that change, also those that need programs which an earlier task would install.
same_changes "$work/check" "$work/output"
if grep -E "^.WARNING.: (bare|directory): .*(nvidia-c|not an executable file)" "$work/check"; then exit 1; fi
grep 'No GPU can be described on this host. No NVIDIA driver is loaded' "$work/output"
grep -E '^refused +: .* changed=0 +unreachable=0 +failed=1' "$work/output"
test "$(grep -cE ' : ok=.* changed=[1-9][0-9]* +unreachable=0 +failed=0' "$work/output")" = 4
"$python" -B fleet.py check "$work"
contents >"$work/configured"
files >"$work/files"

# Without the role of the toolkit, the other roles find the toolkit.
run gpufleet.nvidia.rolling --skip-tags toolkit --extra-vars nvidia_serial=100% --limit packages:directory "$@" | tee "$work/output"
test "$(grep -cE ' : ok=.* changed=0 +unreachable=0 +failed=0' "$work/output")" = 2
contents | diff "$work/configured" -
files | diff "$work/files" -

run gpufleet.nvidia.remove --check --limit '!refused' "$@" >"$work/check"
contents | diff "$work/configured" -

# A new driver changes the specification. The removal removes this one too.
"$python" -B fleet.py driver "$work" 580.95.05
purge='nvidia_runtime_purge_backups=true nvidia_toolkit_purge_backups=true nvidia_cdi_purge_backups=true'
run renew.yml --limit packages "$@"
run gpufleet.nvidia.remove --limit '!refused' --extra-vars "$purge" "$@" >"$work/output"
same_changes "$work/check" "$work/output"
"$python" -B fleet.py driver "$work" 575.57.08
contents | diff "$work/before" -

# On a host without records a runtime that was registered by hand stays.
daemon=$work/trees/packages/etc/docker/daemon.json
cp "$daemon" "$work/daemon.json"
printf '{"runtimes": {"nvidia": {"path": "/usr/bin/nvidia-container-runtime"}}}' >"$daemon"
contents >"$work/by_hand"
run gpufleet.nvidia.remove --limit packages "$@" | tee "$work/output"
grep 'was not recorded by this collection, so it stays: /etc/docker/daemon.json' "$work/output"
grep -E '^packages +: .* changed=0 +unreachable=0 +failed=0' "$work/output"
contents | diff "$work/by_hand" -
cp "$work/daemon.json" "$daemon"
contents | diff "$work/before" -
