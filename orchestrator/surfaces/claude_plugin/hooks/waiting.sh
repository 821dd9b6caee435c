#!/bin/sh
# A hook of Claude Code: one line for the person, if an agent of this project waits for one.
# It always succeeds: after a Stop hook that exits with 2, the model is sent back to work.
sh "${0%/*}/../orchestrator.sh" pending --hook 2> /dev/null || exit 0
