#!/bin/sh
# site.yml with the toolkit in a directory: engines have their runtimes there, another version leaves them alone, and
# everything comes back.
set -eux

trees=$(mktemp -d)
trap 'rm -r "$trees"' EXIT
run() { ansible-playbook --inventory hosts.yml --extra-vars "trees=$trees" "$@"; }
unchanged() {
    run "$@" | tee "$trees/output"
    # A host whose line of the recap shows a change.
    if grep -E '^[a-z-]+ +: ok=.* changed=[1-9]' "$trees/output"; then exit 1; fi
}

run prepare.yml "$@"
run gpufleet.nvidia.site --check "$@"
run judge.yml --extra-vars stage=untouched "$@"
run gpufleet.nvidia.site "$@"
run judge.yml --extra-vars 'stage=installed toolkit_version=1.19.1' "$@"
unchanged gpufleet.nvidia.site "$@"
# The engines alone know where it is, too.
unchanged gpufleet.nvidia.site --skip-tags toolkit "$@"
run gpufleet.nvidia.rolling --extra-vars toolkit_version=1.20.0 "$@"
run judge.yml --extra-vars 'stage=installed toolkit_version=1.20.0' "$@"
run gpufleet.nvidia.remove --check --extra-vars nvidia_runtime_purge_backups=true "$@"
run judge.yml --extra-vars 'stage=installed toolkit_version=1.20.0' "$@"
run gpufleet.nvidia.remove --extra-vars nvidia_runtime_purge_backups=true "$@"
run judge.yml --extra-vars stage=untouched "$@"
