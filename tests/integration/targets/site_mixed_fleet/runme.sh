#!/bin/sh
# One play of site.yml for hosts of which each has another engine, one has two, and one none; then the way back.
set -eux

trees=$(mktemp -d)
trap 'rm -r "$trees"' EXIT
run() { ansible-playbook --inventory hosts.yml --extra-vars "trees=$trees" "$@"; }

run prepare.yml "$@"
run gpufleet.nvidia.site "$@"
run judge.yml --extra-vars stage=configured "$@"
run gpufleet.nvidia.site "$@" | tee "$trees/second"
# A host whose line of the recap shows a change.
if grep -E '^[a-z-]+ +: ok=.* changed=[1-9]' "$trees/second"; then exit 1; fi
run gpufleet.nvidia.remove --extra-vars 'nvidia_runtime_purge_backups=true nvidia_toolkit_purge_backups=true' "$@"
run judge.yml --extra-vars stage=removed "$@"
