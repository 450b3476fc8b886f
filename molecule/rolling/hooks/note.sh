#!/bin/sh
# Inside a host: notes which hook ran, for which engines, and Docker's default runtime at that moment.
set -eu
echo "$* $(docker info --format '{{.DefaultRuntime}}')" >>/run/gpufleet-hooks
