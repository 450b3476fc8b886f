#!/bin/sh
# The playbook audit for hosts of many kinds, of which one cannot be reached and one has no Python; then for a few of them.
set -eux

work=$OUTPUT_DIR
targets=$PWD
python=$ANSIBLE_TEST_PYTHON_INTERPRETER
"$python" -B ../../../hosts/fixtures/audit_fleet.py "$work" 18
run() { ansible-playbook --inventory "$work/hosts.json" "$@"; }
severities() { sed -n 's/^ *- *//; s/^[ "'"'"']*\(critical\|warning\|info\)  .*/\1/p' "$1" | uniq | tr '\n' ' '; }
mkdir "$work/from"
cd "$work/from"

# For a pipeline: the findings are printed and written, and then the playbook fails.
if ANSIBLE_STRATEGY=free run gpufleet.nvidia.audit --extra-vars 'nvidia_audit_limit=1000 nvidia_audit_fail_on=critical' "$@" \
    >"$work/output"; then exit 1; fi
cat "$work/output"
grep -E '18 hosts: [0-9]+ critical' "$work/output"
test "$(severities "$work/output")" = 'critical info '
test "$(find . ! -name . | sort | tr '\n' ' ')" = './gpufleet-audit.html ./gpufleet-audit.json '
test -z "$(find . -type f ! -perm 0600)"
"$python" -B "$targets/check.py" .
rm ./*

# A diff would show the weaknesses that the files are kept private for.
run gpufleet.nvidia.audit --limit docker-01:gone-01:no-python-01:cdi-stale-01 --check --diff --extra-vars nvidia_audit_limit=2 "$@" |
    tee "$work/output"
grep '4 hosts: 3 critical' "$work/output"
grep -E 'and [0-9]+ more' "$work/output"
if grep '^+' "$work/output"; then exit 1; fi
test -z "$(ls -A)"

# Twice, into a directory that the first run creates. Writing files on the controller changes no host. Findings of severity info
# do not fail the play.
run gpufleet.nvidia.audit gpufleet.nvidia.audit --limit bare-01 "$@" --extra-vars \
    "nvidia_audit_fail_on=warning nvidia_audit_dir=$work/from/new nvidia_audit_json=other.json nvidia_audit_html=other.html" |
    tee "$work/output"
test "$(grep -cE '^bare-01 .* changed=0 +unreachable=0 +failed=0' "$work/output")" = 2
grep '"hosts": 1,' new/other.json
rm -r new

# Refused before any host is inspected.
for refused in 'nvidia_audit_fail_on=always must be never, critical or warning' 'nvidia_audit_dir=/dev/null/x cannot be written'; do
    if run gpufleet.nvidia.audit --limit bare-01 --extra-vars "${refused%% *}" "$@" >"$work/output" 2>&1; then exit 1; fi
    grep "${refused#* }" "$work/output"
    if grep 'Inspect the host' "$work/output"; then exit 1; fi
    test -z "$(ls -A)"
done

# What hosts answer is no template.
"$python" -B "$targets/../../../hostile_hosts.py" ansible-playbook
