#!/bin/sh
# audit.yml over thirty hosts of many kinds, of which one cannot be reached and one has no Python; then over a few.
set -eux

work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
"${ANSIBLE_TEST_PYTHON_INTERPRETER:-python3}" -B ../../../hosts/fixtures/audit_fleet.py "$work"
run() { ansible-playbook --inventory "$work/hosts.json" gpufleet.nvidia.audit "$@"; }
here() { run --extra-vars "nvidia_audit_dir=$work" "$@"; }
severities() { sed -n 's/^ *- *//; s/^[ "'"'"']*\(critical\|warning\|note\)  .*/\1/p' "$1" | uniq | tr '\n' ' '; }

here --extra-vars nvidia_audit_limit=1000 "$@" | tee "$work/output"
grep -E '30 hosts: [0-9]+ critical' "$work/output"
test "$(severities "$work/output")" = 'critical warning note '
ansible-playbook judge.yml --extra-vars "work=$work" "$@"

# From here on few hosts.
few='docker-01:gone-01:no-python-01:cdi-stale-01'
mkdir "$work/from"
cd "$work/from"
run --limit "$few" --check --diff "$@" | tee "$work/output"
grep '4 hosts: 3 critical' "$work/output"
# It would show the weaknesses that the files are kept private for.
if grep '^+' "$work/output"; then exit 1; fi
test -z "$(ls -A)"
run --limit "$few" --extra-vars nvidia_audit_limit=2 "$@" | tee "$work/output"
grep -E 'and [0-9]+ more' "$work/output"
test "$(ls -A | tr '\n' ' ')" = 'gpufleet-audit.html gpufleet-audit.json '
test -z "$(find . -type f ! -perm 0600)"
sha256sum ./* >"$work/sums"
run --limit "$few" "$@" | tee "$work/output"
# A host whose line of the recap shows a change.
if grep -E ' : ok=.* changed=[1-9]' "$work/output"; then exit 1; fi

# For a pipeline: told, written, and then failed.
if ANSIBLE_STRATEGY=free run --limit gone-01 --extra-vars nvidia_audit_fail_on=critical "$@" >"$work/output"; then exit 1; fi
grep '1 host: 1 critical' "$work/output"
grep '"hosts": 1,' gpufleet-audit.json
run --limit bare-01 --extra-vars 'nvidia_audit_fail_on=warning nvidia_audit_json=other.json nvidia_audit_html=other.html' "$@"
grep '"hosts": 1,' other.json
# Refused before anything is looked at.
rm ./*
if run --limit "$few" --extra-vars nvidia_audit_fail_on=always "$@" >"$work/output"; then exit 1; fi
grep 'nvidia_audit_fail_on is never, critical or warning' "$work/output"
test -z "$(ls -A)"
