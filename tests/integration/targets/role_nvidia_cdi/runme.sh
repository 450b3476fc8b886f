#!/bin/sh
# site.yml and remove.yml on hosts that have a driver, or none yet, or are no hosts at all; and the step after a change.
set -eux

trees=$(mktemp -d)
trap 'rm -r "$trees" "$trees".*' EXIT
# The engines have targets of their own.
run() { ansible-playbook --inventory hosts.yml --skip-tags runtime --extra-vars "trees=$trees" "$@"; }
unchanged() {
    run "$@" | tee "$trees.output"
    # A host whose line of the recap shows a change.
    if grep -E '^[a-z-]+ +: ok=.* changed=[1-9]' "$trees.output"; then exit 1; fi
}
# Everything but what a host forgets at its next boot, and what the toolkit's module notes for itself.
look() {
    (cd "$trees" && find . -path './*/run' -prune -o ! -name .unchanged.json -printf '%p %M %l\n' | sort
        find . -path './*/run' -prune -o -type f ! -name .unchanged.json -exec sha256sum '{}' + | sort)
}

run prepare.yml "$@"
look >"$trees.before"
run gpufleet.nvidia.site --check "$@"
look | diff "$trees.before" -
if run gpufleet.nvidia.site --limit undriven --extra-vars nvidia_cdi_when_no_driver=fail "$@" >"$trees.output"; then exit 1; fi
grep 'No GPU can be described on this host. No driver of NVIDIA is loaded' "$trees.output"
look | diff "$trees.before" -
run gpufleet.nvidia.site "$@" | tee "$trees.output"
grep 'is an offline tree, in which there are no GPUs to describe' "$trees.output"
run judge.yml "$@"
look >"$trees.configured"
unchanged gpufleet.nvidia.site "$@"
# Without the role that would have asked the host already.
unchanged gpufleet.nvidia.rolling --skip-tags toolkit --extra-vars nvidia_serial=100% "$@"
look | diff "$trees.configured" -
run renew.yml --extra-vars driver_version=580.95.05 "$@"
run driver.yml "$@"
look >"$trees.configured"
purge='nvidia_toolkit_purge_backups=true nvidia_cdi_purge_backups=true'
run gpufleet.nvidia.remove --check --extra-vars "$purge" "$@"
look | diff "$trees.configured" -
run gpufleet.nvidia.remove --extra-vars "$purge" "$@"
look | diff "$trees.before" -
