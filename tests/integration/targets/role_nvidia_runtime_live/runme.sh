#!/bin/sh
set -eux

trees=$(mktemp -d)
trap 'rm -r "$trees"' EXIT
PATH="$PWD/bin:$PATH" ansible-playbook play.yml --inventory ../../inventory --extra-vars "trees=$trees" "$@"
