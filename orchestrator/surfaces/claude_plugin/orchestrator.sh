#!/bin/sh
# The orchestrator that this plugin came with, for the project that Claude Code was started in.
# The plugin lies in the package, and the package in an environment with a bin/ (or in a checkout
# with a .venv/); where neither is so, `orchestrator` is looked for on the PATH.
here=${0%/*}
: "${ORCHESTRATOR_AGENTS_DIR:=${CLAUDE_PROJECT_DIR:-$PWD}/agents}"
export ORCHESTRATOR_AGENTS_DIR
for place in "$here/../../../../../../bin" "$here/../../../.venv/bin"; do
    if [ -x "$place/orchestrator" ]; then exec "$place/orchestrator" "$@"; fi
done
exec orchestrator "$@"
